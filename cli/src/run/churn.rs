//! The host does not sit still: while the guest runs, its pages move to other frames, and now and then a snapshot
//! of all memory is taken, copy-on-write, and dropped again.
//!
//! Freed frames are poisoned. A vCPU that goes on using one, because a flush was missing or came late, reads
//! poison, or writes to a frame that is not its page any more.

use super::args::Run;
use super::machine::Machine;
use slat::{Format, Idle, Span};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// One snapshot for this many pages moved.
const SNAPSHOT: u64 = 1000;
/// How often the thread wakes up to do what is due.
const TICK: Duration = Duration::from_millis(2);

/// The thread that does it.
pub struct Churn<'scope> {
    stop: Arc<AtomicBool>,
    thread: Option<ScopedJoinHandle<'scope, ()>>,
}

/// Starts it, unless the guest is to be left alone.
pub fn start<'scope, F: Format>(
    scope: &'scope Scope<'scope, '_>,
    machine: &'scope Machine<F>,
    run: &Run,
    seed: u64,
) -> Churn<'scope> {
    let stop = Arc::new(AtomicBool::new(false));
    let (rate, unit) = (run.churn, run.pages.largest().bytes());
    // A vCPU that is told nothing would go on writing to what a snapshot shares: pages move, no more.
    let snapshots = !run.sabotage_flushes;
    let stopped = stop.clone();
    let thread = (rate > 0).then(|| {
        crate::thread::start(scope, move || churn(machine, (rate, seed, unit), snapshots, &stopped))
    });
    Churn { stop, thread }
}

impl Churn<'_> {
    /// Stops it and waits for its end.
    pub fn stop(self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread
            && let Err(panic) = thread.join()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Moves pages of `unit` bytes: a part of a huge page could only be moved by splitting it.
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
            // Memory may be short, and then the page stays where it is: the guest comes first.
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
