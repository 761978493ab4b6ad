//! Runs a scenario under many schedules: at random, and by priorities with a few changes (PCT).
//!
//! The seeds are fixed: each run tries the same schedules. A schedule that fails is printed.

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{env, println, thread};

/// Executions of a scenario without `SLAT_SHUTTLE_EXECUTIONS`: half at random, half by priorities.
const EXECUTIONS: usize = 1500;
const SEED: u64 = 0x51a7;
/// Changes of priority in one execution: most races need two or three events in an unusual order.
const CHANGES: usize = 3;
/// More steps than any terminating execution takes.
const STEPS: usize = 1_000_000;

/// Runs `scenario` under many schedules, none of which may fail.
pub(super) fn explore(scenario: fn()) {
    let executions = env::var("SLAT_SHUTTLE_EXECUTIONS").ok();
    let each = executions.map_or(EXECUTIONS, |text| text.parse().expect("a number of executions")) / 2;
    if let Ok(schedule) = env::var("SLAT_SHUTTLE_REPLAY") {
        return shuttle::replay(scenario, &schedule);
    }
    let told = Told::default();
    run(PctScheduler::new_from_seed(SEED, CHANGES, each), FailurePersistence::Print, scenario, &told.0);
    run(RandomScheduler::new_from_seed(SEED, each), FailurePersistence::Print, scenario, &told.0);
}

/// Says how many executions a scenario took, or took until it failed.
#[derive(Default)]
struct Told(Arc<AtomicU64>);

impl Drop for Told {
    fn drop(&mut self) {
        let name = thread::current().name().unwrap_or_default().replace("::shuttle_tests", "");
        println!("EXECUTIONS Shuttle {name} {}", self.0.load(Relaxed));
    }
}

fn run(
    scheduler: impl Scheduler + 'static,
    persistence: FailurePersistence,
    scenario: fn(),
    count: &Arc<AtomicU64>,
) {
    let count = count.clone();
    Runner::new(scheduler, config(persistence)).run(move || {
        count.fetch_add(1, Relaxed);
        scenario();
    });
}

/// The settings of an execution.
pub(super) fn config(persistence: FailurePersistence) -> Config {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    config.failure_persistence = persistence;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    config.silence_warnings = true;
    config
}
