//! The same bench in both row_spec: one source, two crates, two types of the same name.

use slat_cli::error::Error;
use slat_machine::Costs;

/// What is around the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Around {
    /// What `slat sim` takes by default: guests leave, hosts work and zero pages.
    Default,
    /// Nothing: only what the engine does takes time.
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

/// One run of a bench.
#[derive(Clone, Copy, Debug)]
pub struct RowSpec {
    pub bench: &'static str,
    pub policy: &'static str,
    pub vcpus: u32,
    pub around: Around,
}

/// What a lap came to.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// *The* figure of the bench.
    pub value: f64,
    pub unit: &'static str,
    /// CPUs that it wants.
    pub jobs: usize,
}

/// `lap` in one of the row_spec. A figure of an engine that did not do what it was asked is none.
macro_rules! lap {
    ($world:ident, $lap:expr, $costs:expr) => {{
        use $world::benches::{Setting, Work, by_name};
        let lap = $lap;
        let missing = || Error::Machine(format!("no bench {} with policy {}", lap.bench, lap.policy));
        let bench = by_name(lap.bench).ok_or_else(missing)?;
        let policy = bench.policies().iter().find(|policy| policy.name() == lap.policy);
        let work = match lap.around {
            Around::Default => Work::default(),
            Around::Nothing => {
                Work { guest_ns: 0, exit_ns: 0, host_ns: 0, zeroing: false, ..Work::default() }
            }
        };
        let setting = Setting {
            costs: $costs,
            vcpus: lap.vcpus,
            policy: *policy.ok_or_else(missing)?,
            quick: true,
            seed: 1,
            work,
        };
        let point = bench.run(&setting).map_err(Error::Machine)?;
        if let Some(check) = point.checks.iter().find(|check| !check.ok) {
            let crate_name = stringify!($world);
            return Err(Error::Machine(format!(
                "{crate_name}: {}, {}, {} vCPUs: {}: {}",
                lap.bench, lap.policy, lap.vcpus, check.name, check.detail
            )));
        }
        Ok(Measured {
            value: point.figures[0].value,
            unit: point.figures[0].unit,
            jobs: point.stats.jobs.len(),
        })
    }};
}

impl RowSpec {
    /// In virtual time.
    pub fn simulated(&self, costs: &Costs) -> Result<Measured, Error> {
        lap!(slat_sim, self, costs)
    }

    /// On this machine.
    pub fn real(&self, costs: &Costs) -> Result<Measured, Error> {
        lap!(slat_threads, self, costs)
    }
}
