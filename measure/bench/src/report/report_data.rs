//! Everything that a report has measured: the keys of `data.json` from which the others follow.
//!
//! The reports of `slat bench` and `slat sim` are kept as the JSON objects that these commands print, and read by the
//! keys that are promised for them ([`Bench`], [`Sim`]). So a page can be made anew, elsewhere and later (`--from`).

use crate::report::replay::Replay;
pub use crate::sim::sim_report::{Row as SimRow, SimReport as Sim};
pub use crate::threads::bench_report::{Check, Report as Bench, Row};
pub use crate::threads::machine_info::Machine;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::iter;

/// See the module's header.
#[derive(Debug, Serialize, Deserialize)]
pub struct Data {
    /// The version that measured.
    pub slat: String,
    pub machine: Machine,
    pub quick: bool,
    /// Ctrl-C came before all parts were measured.
    pub interrupted: bool,
    pub seconds: f64,
    pub parts: Vec<Part>,
}

/// The outcome of one command.
#[derive(Debug, Serialize, Deserialize)]
pub struct Part {
    /// Without the `slat` in front.
    pub command: String,
    pub seconds: f64,
    pub outcome: Outcome,
}

/// The outcome of a command.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Bench(Bench),
    Sim(Sim),
    Replay(Replay),
    /// Nothing, and why.
    Failed(String),
}

impl Data {
    /// The benches.
    pub fn benches(&self) -> impl Iterator<Item = &Bench> {
        self.parts.iter().filter_map(|part| match &part.outcome {
            Outcome::Bench(bench) => Some(bench),
            _ => None,
        })
    }

    /// The simulations.
    pub fn sims(&self) -> impl Iterator<Item = &Sim> {
        self.parts.iter().filter_map(|part| match &part.outcome {
            Outcome::Sim(sim) => Some(sim),
            _ => None,
        })
    }

    /// The simulation of this name, if it was run.
    pub fn sim(&self, name: &str) -> Option<&Sim> {
        self.sims().find(|sim| sim.sim == name)
    }

    /// The replay, if it was run.
    pub fn replay(&self) -> Option<&Replay> {
        self.parts.iter().find_map(|part| match &part.outcome {
            Outcome::Replay(replay) => Some(replay),
            _ => None,
        })
    }

    /// Every check, with the command that made it. A command that could not run is a check that does not hold.
    pub fn checks(&self) -> impl Iterator<Item = (&str, Check)> {
        self.parts.iter().flat_map(|part| iter::repeat(&*part.command).zip(part.checks()))
    }
}

impl Part {
    fn checks(&self) -> Vec<Check> {
        match &self.outcome {
            Outcome::Bench(bench) => bench.checks.clone(),
            Outcome::Sim(sim) => sim.checks.clone(),
            Outcome::Replay(replay) => replay.checks(),
            Outcome::Failed(why) => {
                vec![Check { name: "it runs to its end".into(), ok: false, detail: why.clone() }]
            }
        }
    }
}

impl Row {
    /// A parameter, as text.
    pub fn param(&self, key: &str) -> String {
        text(self.params.get(key))
    }

    /// Whether it has this name, and each of these parameters.
    pub fn is(&self, name: &str, params: &[(&str, &str)]) -> bool {
        self.name == name && params.iter().all(|(key, value)| self.param(key) == *value)
    }
}

/// A parameter, as people read it.
pub fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}
