//! This machine: acts take their time by its clock, and every job is a thread on a CPU of its own, as far as there are CPUs.
//!
//! ```text
//! run ─┬─ thread, pinned ── pages at hand ──│ line │── work ──▶ when it ended
//!      └─ …                                 └──────┘ all cross it together
//! ```

mod pages;
mod partner;
mod pin;

use super::{Costs, Job, JobTold, Told};
pub use core::sync::atomic::{AtomicU64, Ordering};
pub use pages::{read_page, zero_page};
pub use parking_lot::{Mutex, RwLock};
pub use partner::hand_over;
pub use pin::pin;
use std::cell::Cell;
use std::hint::spin_loop;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

thread_local! {
    /// When the run that this thread has a job in began.
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Between two looks of a guest at whether it is kicked.
const POLL_NS: u64 = 100;

/// Nanoseconds since the run began; 0 outside of one.
pub fn now() -> u64 {
    BEGAN.get().map_or(0, |began| began.elapsed().as_nanos() as u64)
}

/// Code of the host or the hypervisor works for so long.
pub fn compute(ns: u64) {
    let began = Instant::now();
    while (began.elapsed().as_nanos() as u64) < ns {
        spin_loop();
    }
}

/// The guest computes for so long, or until it is kicked; what is left of it then. 0: it has done it all.
pub fn guest(ns: u64, kicked: impl Fn() -> bool) -> u64 {
    let began = Instant::now();
    let mut polled = 0;
    loop {
        let done = began.elapsed().as_nanos() as u64;
        if done >= ns {
            return 0;
        }
        if done >= polled + POLL_NS {
            polled = done;
            if kicked() {
                return ns - done;
            }
        }
        spin_loop();
    }
}

/// Nothing to do for so long: others have the CPU.
pub fn rest(ns: u64) {
    thread::sleep(Duration::from_nanos(ns));
}

/// One turn of a loop that waits for another CPU. That one may be a thread on this very CPU.
pub fn pause() {
    thread::yield_now();
}

/// Guests poll.
pub fn kick(_vcpu: u32) {}

/// Runs every job on a CPU of its own, round robin where there are fewer; all begin together. Returns when all have
/// ended.
pub fn run(_costs: &Costs, jobs: Vec<Job<'_>>) -> Told {
    let line = &Barrier::new(jobs.len());
    let kind = jobs.first().map_or("", |job| job.name);
    let mut ran = Vec::with_capacity(jobs.len());
    thread::scope(|scope| {
        let threads: Vec<_> = jobs
            .into_iter()
            .enumerate()
            .map(|(cpu, job)| {
                scope.spawn(move || {
                    pin(cpu);
                    let _pages = pages::Lent::take();
                    line.wait();
                    let began = Instant::now();
                    BEGAN.set(Some(began));
                    (job.work)();
                    partner::dismiss();
                    (job.name, began, Instant::now())
                })
            })
            .collect();
        for thread in threads {
            ran.push(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
    let first = ran.iter().map(|&(_, began, _)| began).min();
    let since = |then: Instant| first.map_or(0, |first| (then - first).as_nanos() as u64);
    let ended = ran.iter().filter(|&&(name, ..)| name == kind).map(|&(_, _, ended)| since(ended));
    Told {
        wall_ns: ended.max().unwrap_or(0),
        jobs: ran
            .iter()
            .map(|&(name, began, ended)| JobTold {
                name,
                ns: (ended - began).as_nanos() as u64,
                ..JobTold::default()
            })
            .collect(),
        ..Told::default()
    }
}
