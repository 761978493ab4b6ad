//! A host that changes guest memory while the guest runs: pages move to other frames, and every thousandth time a
//! copy-on-write snapshot of all memory is taken and dropped.
//!
//! Freed frames are filled with poison. A vCPU that uses a freed frame after a missing or late flush reads poison, or
//! writes to a frame that is not its page.

use super::args::Run;
use super::machine::Machine;
use slat::{Format, Idle, Span};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// One snapshot per this many moved pages.
const SNAPSHOT: u64 = 1000;
/// The interval at which the thread moves the pages that are due.
const TICK: Duration = Duration::from_millis(2);

/// The thread that moves pages.
pub struct Churn<'scope> {
    stop: Arc<AtomicBool>,
    thread: Option<ScopedJoinHandle<'scope, ()>>,
}

/// Starts the thread, unless the rate is 0.
pub fn start<'scope, F: Format>(
    scope: &'scope Scope<'scope, '_>,
    machine: &'scope Machine<F>,
    run: &Run,
    seed: u64,
) -> Churn<'scope> {
    let stop = Arc::new(AtomicBool::new(false));
    let (rate, unit) = (run.churn, run.pages.largest().bytes());
    // Without flushes, a vCPU would keep writing to pages that a snapshot shares. So pages move, but no snapshot is
    // taken.
    let snapshots = !run.sabotage_flushes;
    let stopped = stop.clone();
    let thread = (rate > 0).then(|| {
        crate::thread::start(scope, move || churn(machine, (rate, seed, unit), snapshots, &stopped))
    });
    Churn { stop, thread }
}

impl Churn<'_> {
    /// Stops the thread and joins it.
    pub fn stop(self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread
            && let Err(panic) = thread.join()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Moves whole units of `unit` bytes: moving a part of a huge page would split it.
fn churn<F: Format>(
    machine: &Machine<F>,
    (rate, seed, unit): (u64, u64, u64),
    snapshots: bool,
    stop: &AtomicBool,
) {
    let Some(mut idle) = Idle::take() else { return };
    let began = Instant::now();
    let (mut random, mut done) = (fastrand::Rng::with_seed(seed), 0);
    while !stop.load(Relaxed) {
        let due = began.elapsed().as_micros() as u64 * rate / 1_000_000;
        while done < due && !stop.load(Relaxed) {
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
        std::thread::sleep(TICK);
    }
}
