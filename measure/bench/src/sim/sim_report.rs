//! The report of `slat sim`: figures of simulated CPUs in virtual time, and how far they can be believed.
//!
//! A [`SimReport`] has two faces, as the report of `slat bench` has: [`crate::sim::sim_tables`] for people and one JSON object for
//! programs. Both say that it is simulated, and both carry what every figure hangs on: what each operation was taken to
//! cost, and whether that was measured ([`SimReport::costs_from`]); whether the ranking of the policies survives
//! when the least certain of these costs are halved and doubled ([`Swept`]); and what becomes of the series' own figures
//! ([`Against`]), those that are not reproduced included.
//!
//! Nothing in it depends on the machine that simulates, or on the time: two runs give the same bytes.

use crate::threads::bench_report::Check;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Of a program, or read from what one printed.
type Name = Cow<'static, str>;

/// The outcome of one simulated bench.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SimReport {
    pub schema: u32,
    /// The clock: "virtual".
    pub clock: Name,
    /// Its name on the command line.
    pub sim: Name,
    /// The patch series whose table it answers.
    pub series: Name,
    /// With what settings.
    pub params: Map<String, Value>,
    /// The cost of each operation, by the name of its field in a cost file.
    pub costs: BTreeMap<Name, f64>,
    /// Where each cost comes from: "measured" or "assumed".
    pub costs_from: BTreeMap<Name, Name>,
    /// One for each number of vCPUs, each case and each policy; rows of one number and one case stand together.
    pub rows: Vec<Row>,
    /// The largest number of vCPUs again, with uncertain costs changed. Empty where it was not asked for.
    pub sweep: Vec<Swept>,
    /// The series' figures beside these. Empty where the vCPUs they need were not asked for.
    pub against_series: Vec<Against>,
    /// The conditions under which the rows count.
    pub checks: Vec<Check>,
}

/// One run: so many vCPUs under one policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    pub vcpus: u32,
    /// Empty where the bench has only one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub case: String,
    pub policy: Name,
    /// The run was ended at its bound: the first two figures are more than that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
    /// The first is the one that policies are ranked by: less is better.
    pub figures: Vec<Figure>,
    /// Faults, moves, …: what a time per operation divides by.
    pub operations: u64,
    /// The share of their time that vCPUs waited for locks and cache lines, 0 to 1.
    pub waiting: f64,
    pub flushes: u64,
    /// Interrupts sent to running vCPUs.
    pub kicks: u64,
    /// Shared operations simulated.
    #[serde(default)]
    pub events: u64,
    /// Simulated time until the last vCPU was done.
    pub wall_ns: u64,
    /// The cache lines that were waited for longest, longest first.
    pub lines: Vec<Line>,
}

impl SimReport {
    /// The policies, in the order of the rows.
    pub fn policies(&self) -> Vec<&str> {
        let mut policies: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !policies.contains(&&*row.policy) {
                policies.push(&row.policy);
            }
        }
        policies
    }

    /// The numbers of vCPUs, ascending.
    pub fn vcpus(&self) -> Vec<u32> {
        let mut vcpus: Vec<u32> = self.rows.iter().map(|row| row.vcpus).collect();
        vcpus.sort_unstable();
        vcpus.dedup();
        vcpus
    }

    /// Whether slat, the last policy, has more of a figure than another one that does the same work.
    pub fn loses(&self, vcpus: u32, value: impl Fn(&Row) -> Option<f64>) -> bool {
        let policies = self.policies();
        let of = |policy: &str| self.at(vcpus, policy).and_then(&value);
        let Some((slat, others)) = policies.split_last() else { return false };
        let others = others.iter().filter(|policy| !policy.contains("no aging"));
        others.filter_map(|policy| of(policy)).any(|theirs| of(slat) > Some(theirs))
    }

    /// The row of so many vCPUs under this policy.
    pub fn at(&self, vcpus: u32, policy: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.vcpus == vcpus && row.policy == policy)
    }
}

impl Row {
    /// The value of the figure that policies are ranked by.
    pub fn value(&self) -> f64 {
        self.figures[0].value
    }

    /// The figure that policies are ranked by.
    pub fn first(&self) -> Option<&Figure> {
        self.figures.first()
    }

    /// A figure by its name.
    pub fn figure(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.name == name)
    }
}

/// One figure of a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    pub name: Name,
    pub value: f64,
    pub unit: Name,
}

/// A cache line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// Its content.
    pub name: String,
    /// Where it was touched most: `sync/baselines.rs:141`.
    pub site: String,
    /// How often it moved from one CPU to another.
    pub transfers: u64,
    /// How long all CPUs together waited for it.
    pub waited_ns: u64,
}

/// The policies once more, with one cost changed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Swept {
    /// Fields of the cost file that changed together: `near+far`.
    pub cost: String,
    /// Their factor.
    pub factor: f64,
    pub rows: Vec<SweptRow>,
    /// Whether no two policies that stood well apart have changed places.
    pub ranking_holds: bool,
}

/// The figure of one policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SweptRow {
    pub vcpus: u32,
    pub policy: Name,
    /// The figure that policies are ranked by.
    pub value: f64,
}

/// A figure of the series' beside what the simulation says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Against {
    /// The name of the figure.
    pub what: String,
    /// The series' figure. Reports of earlier versions called it `seed`.
    #[serde(alias = "seed")]
    pub published: f64,
    pub simulated: f64,
    pub unit: Name,
    /// Of a ratio: what is divided by what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sides: Option<[String; 2]>,
    /// A parameter was chosen so that this one agrees. It proves nothing; those that are not fitted do.
    pub fitted: bool,
    /// Whether the two agree as closely as `detail` says.
    pub reproduced: bool,
    pub detail: String,
}

impl From<slat_sim::parts::published_figures::Against> for Against {
    fn from(against: slat_sim::parts::published_figures::Against) -> Self {
        let sides = against.unit.sides().map(|sides| sides.map(str::to_owned));
        Self {
            what: against.what,
            published: against.published,
            simulated: against.simulated,
            unit: against.unit.name().into(),
            sides,
            fitted: against.fitted,
            reproduced: against.reproduced,
            detail: against.detail,
        }
    }
}
