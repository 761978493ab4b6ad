//! What `slat sim` hands back: figures of a machine that is not there, and how far they can be believed.
//!
//! A [`SimReport`] has two faces, as the report of `slat bench` has: [`super::text`] for people and one JSON object for
//! programs. Both say that it is simulated, and both carry what every figure hangs on: what each operation was taken to
//! cost, and whether somebody measured that ([`SimReport::costs_from`]); whether the ranking of the policies survives
//! when the least certain of these costs are halved and doubled ([`Swept`]); and what becomes of the series' own figures
//! ([`Against`]), those that are not reproduced included.
//!
//! Nothing in it depends on the machine that simulates, or on the time: two runs give the same bytes.

use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The outcome of one simulated bench.
#[derive(Clone, Debug, Serialize)]
pub struct SimReport {
    pub schema: u32,
    /// Whose time it is: "virtual".
    pub clock: &'static str,
    /// Its name on the command line.
    pub sim: &'static str,
    /// The patch series whose table it answers.
    pub series: &'static str,
    /// With what settings.
    pub params: Map<String, Value>,
    /// What each operation was taken to cost, by the name of its field in a cost file.
    pub costs: BTreeMap<&'static str, f64>,
    /// Where each cost comes from: "measured" or "assumed".
    pub costs_from: BTreeMap<&'static str, &'static str>,
    /// One for each number of vCPUs, each case and each policy; rows of one number and one case stand together.
    pub rows: Vec<Row>,
    /// The largest number of vCPUs again, with uncertain costs changed. Empty where it was not asked for.
    pub sweep: Vec<Swept>,
    /// The series' figures beside these. Empty where the vCPUs they need were not asked for.
    pub against_series: Vec<Against>,
    /// What must hold for the rows to mean anything.
    pub checks: Vec<Check>,
}

/// One run: so many vCPUs under one policy.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub vcpus: u32,
    /// Empty where the bench has only one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub case: String,
    pub policy: &'static str,
    /// The run was ended at its bound: the first two figures are more than that.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
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
    pub events: u64,
    /// Simulated time until the last vCPU was done.
    pub wall_ns: u64,
    /// The cache lines that were waited for longest, longest first.
    pub lines: Vec<Line>,
}

impl Row {
    /// The figure that policies are ranked by.
    pub fn value(&self) -> f64 {
        self.figures[0].value
    }
}

/// One figure of a row.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub name: &'static str,
    pub value: f64,
    pub unit: &'static str,
}

/// A cache line.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// What lies on it.
    pub name: String,
    /// Where it was touched most: `sync/gate.rs:99`.
    pub site: String,
    /// How often it moved from one CPU to another.
    pub transfers: u64,
    /// How long all CPUs together waited for it.
    pub waited_ns: u64,
}

/// The policies once more, with one cost changed.
#[derive(Clone, Debug, Serialize)]
pub struct Swept {
    /// Fields of the cost file that changed together: `near+far`.
    pub cost: String,
    /// What they were multiplied by.
    pub factor: f64,
    pub rows: Vec<SweptRow>,
    /// Whether no two policies that stood well apart have changed places.
    pub ranking_holds: bool,
}

/// What became of one policy.
#[derive(Clone, Debug, Serialize)]
pub struct SweptRow {
    pub vcpus: u32,
    pub policy: &'static str,
    /// The figure that policies are ranked by.
    pub value: f64,
}

/// A figure of the series' beside what the simulation says.
#[derive(Clone, Debug, Serialize)]
pub struct Against {
    /// What it is a figure of.
    pub what: String,
    #[serde(rename = "seed")]
    pub published: f64,
    pub simulated: f64,
    pub unit: &'static str,
    /// A parameter was chosen so that this one agrees. It proves nothing; those that are not fitted do.
    pub fitted: bool,
    /// Whether the two agree as closely as `detail` says.
    pub reproduced: bool,
    pub detail: String,
}

impl From<slat_sim::benches::Against> for Against {
    fn from(against: slat_sim::benches::Against) -> Self {
        let slat_sim::benches::Against { what, published, simulated, unit, fitted, reproduced, detail } =
            against;
        Self { what, published, simulated, unit, fitted, reproduced, detail }
    }
}

/// A condition of the whole simulation.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What must hold.
    pub name: String,
    /// Whether it held, in every row.
    pub ok: bool,
    /// What speaks for the verdict.
    pub detail: String,
}
