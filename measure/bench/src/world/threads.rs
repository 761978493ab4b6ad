//! This machine: acts take their time by its clock, and every job is a thread on a CPU of its own, as far as there are CPUs.
//!
//! ```text
//! run ─┬─ thread, pinned ── pages at hand ──│ line │── work ──▶ when it ended
//!      └─ …                                 └──────┘ all cross it together
//! ```

mod fresh_pages;
mod pinning;
mod preemptions;
mod run_clock;
mod wake_partner;

use crate::world::run_stats::RunStats;
use core::sync::atomic::Ordering;
pub use core::sync::atomic::{AtomicPtr, AtomicU64, fence};
pub use fresh_pages::{read_page, zero_page};
pub use parking_lot::{Mutex, MutexGuard, RwLock};
pub use pinning::{cpus, pin};
use run_clock::BEGAN;
use slat_machine::{Costs, Job, JobStats};
use std::cell::Cell;
use std::hint::{black_box, spin_loop};
use std::sync::OnceLock;
pub use std::thread_local;
use std::time::{Duration, Instant};
use std::{io, thread};
pub use wake_partner::hand_over;

thread_local! {
    /// Whether no other job of that run has this thread's CPU.
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Acts of a job between two looks at the clock, so that looks cost nothing.
pub const LOOK_EVERY: u64 = 512;

/// Ends the process where the system has no thread to give: the threads of that run would wait for it for ever.
pub static NO_THREAD: OnceLock<fn(&io::Error) -> !> = OnceLock::new();

/// Between two looks of a guest at whether it is kicked.
const POLL_NS: u64 = 100;

/// Nanoseconds since the run began; 0 outside of one.
pub fn now() -> u64 {
    BEGAN.get().map_or(0, |began| began.elapsed().as_nanos() as u64)
}

/// The same: the look itself takes its time.
pub fn clock() -> u64 {
    now()
}

/// Nanoseconds since `began`, without what looking at the clock takes.
pub fn elapsed(began: u64) -> u64 {
    (now() - began).saturating_sub(looks_ns() / 2)
}

/// Code of the host or the hypervisor works for so long.
pub fn compute(ns: u64) {
    guest(ns, || false);
}

/// The guest computes for so long, or until it is kicked; what is left of it then. 0: it has done it all.
pub fn guest(ns: u64, kicked: impl Fn() -> bool) -> u64 {
    if ns == 0 {
        return 0;
    }
    let (began, looks) = (Instant::now(), looks_ns());
    let mut polled = 0;
    loop {
        let done = began.elapsed().as_nanos() as u64 + looks;
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

/// The time of the two looks at the clock that measure a stretch.
fn looks_ns() -> u64 {
    static LOOKS: OnceLock<u64> = OnceLock::new();
    let look = |_| {
        let began = Instant::now();
        black_box(began.elapsed());
        began.elapsed().as_nanos() as u64
    };
    *LOOKS.get_or_init(|| (0..1000).map(look).min().unwrap_or(0))
}

/// Nothing to do for so long: others have the CPU. Where there are none it waits awake: who sleeps for microseconds comes back
/// tens of them later, to caches that are cold.
pub fn rest(ns: u64) {
    if ALONE.get() { compute(ns) } else { thread::sleep(Duration::from_nanos(ns)) }
}

/// One turn of a loop that waits for another CPU. That one may be a thread on this very CPU.
pub fn pause() {
    thread::yield_now();
}

/// So many bytes have been copied.
pub fn copy(_bytes: usize) {}

/// One has been made in the other.
#[inline(always)]
pub fn copied<T: ?Sized>(_from: &T, _to: &T) {}

/// These words have been loaded.
#[inline(always)]
pub fn read_at_once(_words: impl Iterator<Item = *const ()>) {}

/// Guests poll.
pub fn kick(_vcpu: u32) {}

/// A line that threads cross together, any number of times.
///
/// It spins: a thread that has to be woken from sleep starts tens of microseconds late, which is thousands of faults. It yields now
/// and then, for machines with fewer cores than threads.
#[derive(Debug)]
pub struct Line {
    threads: u64,
    arrivals: AtomicU64,
}

impl Line {
    /// A line for this many threads (at least one).
    pub fn new(threads: usize) -> Self {
        Self { threads: threads as u64, arrivals: AtomicU64::new(0) }
    }

    /// Waits until all threads stand at the line.
    pub fn cross(&self) {
        const LOOKS_BEFORE_YIELD: u32 = 1 << 12;
        // ORDER(line): what a thread did before the line is visible to all behind it: the release half of each arrival pairs
        // with the acquire load of the waiters.
        let before = self.arrivals.fetch_add(1, Ordering::AcqRel);
        let all = (before / self.threads + 1) * self.threads;
        let mut looks = 0;
        while self.arrivals.load(Ordering::Acquire) < all {
            looks += 1;
            if looks % LOOKS_BEFORE_YIELD == 0 { thread::yield_now() } else { spin_loop() }
        }
    }
}

/// Runs every job on a CPU of its own, round robin where there are fewer; all begin together. Returns when all have
/// ended.
pub fn run(_costs: &Costs, jobs: Vec<Job<'_>>) -> RunStats {
    let line = &Line::new(jobs.len());
    let alone = jobs.len() <= cpus();
    let kind = jobs.first().map_or("", |job| job.name);
    let mut ran = Vec::with_capacity(jobs.len());
    thread::scope(|scope| {
        let threads: Vec<_> = jobs
            .into_iter()
            .enumerate()
            .map(|(nth, job)| {
                let thread = thread::Builder::new().spawn_scoped(scope, move || {
                    pin(job.cpu.unwrap_or(nth));
                    let _pages = fresh_pages::Lent::take();
                    let taken_before = preemptions::preemptions();
                    line.cross();
                    let began = Instant::now();
                    BEGAN.set(Some(began));
                    ALONE.set(alone);
                    (job.work)();
                    wake_partner::dismiss();
                    let ended = Instant::now();
                    (job.name, began, ended, preemptions::preemptions() - taken_before)
                });
                thread.unwrap_or_else(|error| match NO_THREAD.get() {
                    Some(end) => end(&error),
                    None => panic!("no thread more can be started: {error}"),
                })
            })
            .collect();
        for thread in threads {
            ran.push(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
    let first = ran.iter().map(|&(_, began, ..)| began).min();
    let since = |then: Instant| first.map_or(0, |first| (then - first).as_nanos() as u64);
    let ended = ran.iter().filter(|&&(name, ..)| name == kind).map(|&(_, _, ended, _)| since(ended));
    RunStats {
        wall_ns: ended.max().unwrap_or(0),
        jobs: ran
            .iter()
            .map(|&(name, began, ended, _)| JobStats {
                name,
                ns: (ended - began).as_nanos() as u64,
                ..JobStats::default()
            })
            .collect(),
        preemptions: ran.iter().map(|&(.., taken)| taken).sum(),
        ..RunStats::default()
    }
}
