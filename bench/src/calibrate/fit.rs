//! The one cost that no probe shows: plain instructions between two shared operations of the engine.
//!
//! It is what is left. One vCPU faults memory in on this machine, with nothing around the engine, and takes so long; the same
//! bench, simulated with everything else as it was measured, takes less. Simulated time grows with `step` in proportion, so
//! two simulations say what it has to be.

use crate::bench::harness::Series;
use slat_cli::error::Error;
use slat_machine::Costs;

/// Laps; the middle one counts.
const LAPS: usize = 5;

/// The bench of one of the two worlds, with nothing but the engine.
macro_rules! bare {
    ($world:ident, $costs:expr) => {{
        use $world::benches::{Policy, Setting, Work, by_name};
        let work = Work { guest_ns: 0, exit_ns: 0, host_ns: 0, zeroing: false, ..Work::default() };
        let setting = Setting { costs: $costs, vcpus: 1, policy: Policy::None, quick: true, seed: 1, work };
        let bench = by_name("demand-paging").ok_or_else(|| Error::Machine("no bench to fit".into()))?;
        bench.run(&setting).map(|point| point.figures[0].value).map_err(Error::Machine)
    }};
}

/// What `step` has to be for the simulation to take as long as this machine does.
pub fn step(costs: &Costs) -> Result<f64, Error> {
    let real = (0..LAPS).map(|_| bare!(slat_threads, costs)).collect::<Result<_, _>>()?;
    let simulated = |step| bare!(slat_sim, &Costs { step, ..costs.clone() });
    let (none, one) = (simulated(0.0)?, simulated(1.0)?);
    Ok(((Series::new(real).median() - none) / (one - none)).max(0.0))
}
