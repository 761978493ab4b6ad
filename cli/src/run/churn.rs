//! A host that changes guest memory while the guest runs: pages move to other frames, and every thousandth time a
//! copy-on-write snapshot of all memory is taken and dropped.
//!
//! Freed frames are filled with poison. A vCPU that uses a freed frame after a missing or late flush reads poison, or
//! writes to a frame that is not its page.

use super::args::Run;
use super::guest_vm::Machine;
use crate::thread::{Stop, Worker, start_worker};
use slat::{Format, Idle, Span};
use std::thread::Scope;
use std::time::{Duration, Instant};

/// One snapshot per this many moved pages.
const SNAPSHOT: u64 = 1000;
/// The interval at which the thread moves the pages that are due.
const TICK: Duration = Duration::from_millis(2);

/// Starts the thread that moves pages, unless the rate is 0.
pub fn start<'scope, F: Format>(
    scope: &'scope Scope<'scope, '_>,
    machine: &'scope Machine<F>,
    run: &'scope Run,
    seed: u64,
) -> Option<Worker<'scope, ()>> {
    (run.churn > 0).then(|| start_worker(scope, move |stop| churn(machine, run, seed, &stop)))
}

/// Moves whole units of the largest page size: moving a part of a huge page would split it.
fn churn<F: Format>(machine: &Machine<F>, run: &Run, seed: u64, stop: &Stop) {
    let Some(mut idle) = Idle::take() else { return };
    let unit = run.pages.largest().bytes();
    // Without flushes, a vCPU would keep writing to pages that a snapshot shares. So pages move, but no snapshot is
    // taken.
    let snapshots = !run.sabotage_flushes;
    let began = Instant::now();
    let (mut random, mut done) = (fastrand::Rng::with_seed(seed), 0);
    while !stop.asked_within(TICK) {
        let due = began.elapsed().as_micros() as u64 * run.churn / 1_000_000;
        while done < due && !stop.asked() {
            done += 1;
            let memory = machine.hvas();
            if memory.is_empty() {
                continue;
            }
            // A page stays in place where no frame is free: the guest has priority.
            if snapshots && done % SNAPSHOT == 0 {
                let _ = machine.space.fork(&mut idle);
            } else {
                let page = memory.start + random.u64(..memory.len() / unit) * unit;
                let _ = machine.space.migrate(&mut idle, Span::sized(page, unit));
            }
        }
    }
}
