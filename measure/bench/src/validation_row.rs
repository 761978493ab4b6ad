//! A row of the validation, and one run of it in each of the two worlds: one source, two crates, two types of the same name.

use crate as on_threads;
use serde::Serialize;
use slat_cli::error::Error;
use slat_machine::Costs;

/// The work around the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Around {
    /// The default work of `slat sim`: guests leave, hosts work and zero pages.
    #[serde(rename = "as simulated")]
    Default,
    /// Nothing: only what the engine does takes time.
    #[serde(rename = "engine only")]
    Nothing,
}

impl Around {
    /// As reports call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "as simulated",
            Self::Nothing => "engine only",
        }
    }
}

/// A guest of real threads polls, so it notices a kick after any time from 0 to twice the mean. Simulated are these parts of the mean.
const POLLS: [f64; 4] = [0.25, 0.75, 1.25, 1.75];
/// Benches that are not judged, and why not.
///
/// Measured with `memslot-perf`: without a vCPU a simulated move takes 1.15 to 1.26 times as long as a real one. Beside a vCPU it takes
/// 0.67 to 0.93 times as long: transfers of lines between the two take longer than the model says.
const NOT_JUDGED: &[(&str, &str)] =
    &[("memslot-perf", "beside a vCPU a real move takes up to 1.5 times as long as a simulated one")];

/// A row of the validation.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RowSpec {
    pub bench: &'static str,
    pub policy: &'static str,
    pub vcpus: u32,
    pub around: Around,
}

/// The result of one run.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// *The* figure of the bench.
    pub value: f64,
    pub unit: &'static str,
    /// CPUs that it wants.
    pub jobs: usize,
    /// Times that the system took a CPU away from it; none in virtual time.
    pub preemptions: u64,
}

/// One run in one of the worlds. A figure of an engine that did not do what it was asked is none.
macro_rules! run {
    ($world:ident, $spec:expr, $costs:expr, $seed:expr) => {{
        use $world::parts::setting::{Setting, Work};
        use $world::scenarios::by_name;
        let spec = $spec;
        let missing = || Error::Machine(format!("no bench {} with policy {}", spec.bench, spec.policy));
        let bench = by_name(spec.bench).ok_or_else(missing)?;
        let policy = bench.simulated.columns.iter().find(|policy| policy.name == spec.policy);
        let work = match spec.around {
            Around::Default => Work::default(),
            Around::Nothing => Work::none(),
        };
        let setting = Setting {
            costs: $costs,
            vcpus: spec.vcpus,
            column: *policy.ok_or_else(missing)?,
            quick: true,
            seed: $seed,
            work,
        };
        let point = (bench.simulated.run)(&setting).map_err(Error::Machine)?;
        if let Some(check) = point.checks.iter().find(|check| !check.ok) {
            let crate_name = stringify!($world);
            return Err(Error::Machine(format!(
                "{crate_name}: {}, {}, {} vCPUs: {}: {}",
                spec.bench, spec.policy, spec.vcpus, check.name, check.detail
            )));
        }
        Ok(Measured {
            value: point.figures[0].value,
            unit: point.figures[0].unit,
            jobs: point.stats.jobs.len(),
            preemptions: point.stats.preemptions,
        })
    }};
}

impl RowSpec {
    /// In virtual time.
    pub fn simulated(&self, costs: &Costs, seed: u64) -> Result<Measured, Error> {
        run!(slat_sim, self, costs, seed)
    }

    /// The mean figure of runs in virtual time in which a guest notices a kick at different times.
    pub fn simulated_polling(&self, costs: &Costs, seed: u64) -> Result<f64, Error> {
        let run = |part| {
            let costs = Costs { kick_arrives: part * costs.kick_arrives, ..costs.clone() };
            self.simulated(&costs, seed).map(|run| run.value)
        };
        let runs = POLLS.into_iter().map(run).collect::<Result<Vec<_>, _>>()?;
        Ok(runs.iter().sum::<f64>() / runs.len() as f64)
    }

    /// Why a bench as it is simulated is not judged, if it is not.
    pub fn not_judged_because(&self) -> Option<&'static str> {
        let why = NOT_JUDGED.iter().find(|&&(bench, _)| bench == self.bench).map(|&(_, why)| why);
        why.filter(|_| self.around == Around::Default)
    }

    /// On this machine.
    pub fn real(&self, costs: &Costs, seed: u64) -> Result<Measured, Error> {
        run!(on_threads, self, costs, seed)
    }
}
