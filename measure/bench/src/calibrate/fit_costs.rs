//! Costs that no probe of one operation shows. Each is what is left: a program runs on this machine and is simulated with all
//! other costs as measured. Simulated time grows in proportion with the cost, so two simulations give its value.
//!
//! | cost | program |
//! |---|---|
//! | `step` | one vCPU faults memory in by the quick path of a fault, with nothing around the engine |
//! | `full_path` | the same by the full pipeline |
//! | how soon a guest that polls answers a kick | a thread kicks a guest that only computes |

use crate as on_threads;
use crate::calibrate::own_costs;
use crate::threads::samples::Series;
use crate::validation_row::{Around, RowSpec};
use slat_cli::error::Error;
use slat_machine::Costs;
use std::hint::spin_loop;

/// Runs of a program on this machine; the median counts.
const RUNS: usize = 5;

/// The cost with which a simulation of `bench`, with nothing around the engine, takes as long as this machine does while `busy` of
/// its CPUs work.
fn left_over(
    bench: &'static str,
    busy: usize,
    costs: &Costs,
    with: impl Fn(f64) -> Costs,
) -> Result<f64, Error> {
    let bare = RowSpec { bench, policy: "none", vcpus: 1, around: Around::Nothing };
    let real = || (0..RUNS).map(|_| Ok(bare.real(costs, 1)?.value)).collect::<Result<_, Error>>();
    let real = Series::new(own_costs::while_busy(busy, real)?).median();
    let simulated = |cost| Ok::<_, Error>(bare.simulated(&with(cost), 1)?.value);
    let (none, one) = (simulated(0.0)?, simulated(1.0)?);
    Ok(((real - none) / (one - none)).max(0.0))
}

/// The costs with a value for `step`. Two of them were measured with plain instructions in them. Beside `rmw` a loop executes some while
/// the line is locked: eight more take no longer. And the words of a line were looked at after a load of the line.
fn with_step(costs: &Costs, step: f64) -> Costs {
    const WORDS: f64 = 8.0;
    let (rmw, word) = (costs.rmw - step, costs.word - (costs.load + step) / WORDS);
    Costs { step, rmw: rmw.max(0.0), word: word.max(0.0), ..costs.clone() }
}

/// `costs` with `step` and `full_path` such that simulations of these benches take as long as this machine does while `busy` of its CPUs
/// work.
pub fn instructions(costs: &Costs, busy: usize) -> Result<Costs, Error> {
    // Faults by the quick path alone.
    let step = left_over("demand-paging", busy, costs, |step| with_step(costs, step))?;
    let costs = with_step(costs, step);
    // By the full pipeline alone.
    let full_path = left_over("pre-fault", busy, &costs, |full_path| Costs { full_path, ..costs.clone() })?;
    Ok(Costs { full_path, ..costs })
}

/// Kicks of a run.
const KICKS: u64 = 100;

/// Mean nanoseconds in one of the two worlds from a kick until the vCPU's answer is seen. The guest only computes.
macro_rules! answer {
    ($world:ident, $spin:path, $costs:expr) => {{
        use $world::world::{
            AtomicU64, Job,
            Ordering::{Acquire, Release},
            compute, elapsed, guest, kick, now, run,
        };
        /// On cache lines of its own.
        #[derive(Default)]
        #[repr(align(128))]
        struct Turn(AtomicU64);
        let (kicked, answered, mut ns) = (&Turn::default(), &Turn::default(), 0);
        let vcpu = || {
            for turn in 1..=KICKS {
                // ORDER(price): nothing pairs with it; a guest looks at a kick by such a load.
                let is_kicked = || kicked.0.load(Acquire) == turn;
                while !is_kicked() {
                    guest(1_000_000, is_kicked);
                }
                // ORDER(price): nothing pairs with it; the engine answers by such a store.
                answered.0.store(turn, Release);
            }
        };
        let host = || {
            for turn in 1..=KICKS {
                // Whole periods of the guest's polls would meet them at one point.
                compute(600 + turn * 7919 % 400);
                let began = now();
                // ORDER(price): as above.
                kicked.0.store(turn, Release);
                kick(0);
                // ORDER(price): as above.
                while answered.0.load(Acquire) < turn {
                    $spin();
                }
                ns += elapsed(began);
            }
        };
        run($costs, vec![Job::vcpu(0, vcpu), Job::new("host", host)]);
        ns as f64 / KICKS as f64
    }};
}

/// How long after a kick a guest of real threads notices, which polls: a kick interrupts none of them. Of costs that were measured with
/// two CPUs busy.
pub fn polls(costs: &Costs) -> f64 {
    let real = Series::new((0..RUNS).map(|_| answer!(on_threads, spin_loop, costs)).collect()).median();
    let at_once = Costs { kick: 0.0, kick_arrives: 0.0, kick_taken: 0.0, ..costs.clone() };
    (real - answer!(slat_sim, slat_machine::pause, &at_once)).max(0.0)
}
