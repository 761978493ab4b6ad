//! The world that a bench runs in: what can be done in it, and jobs, each on a CPU of its own.
//!
//! Both worlds have the same acts:
//!
//! | act | simulated | threads |
//! |---|---|---|
//! | [`compute`], [`guest`] | the CPU's clock goes on | spins by the clock |
//! | [`now`] | free | a look at the clock |
//! | [`clock`] | the price of a look | the same |
//! | [`rest`] | the same, asleep | sleeps |
//! | [`copy`] | a price for each cache line | nothing: the copy itself took its time |
//! | [`copied`] | the same, and the lines come from the CPUs that have them | nothing |
//! | [`read_at_once`] | a price for each word, and the lines come together | nothing: the loads took their time |
//! | [`kick`] | an interrupt, which ends the [`guest`] of that vCPU's CPU | nothing: guests poll |
//! | [`zero_page`], [`read_page`] | a price, and a share of the socket's bandwidth | the next page of a pool larger than caches |
//! | [`elapsed`] | the difference | less what the look at the clock takes |
//! | [`hand_over`] | two wake-ups around the work | two wake-ups, of a thread on the same CPU and by it |
//! | atomics, locks | each access to a line in its turn, at its price | `core`'s and `parking_lot`'s |
//!
//! Nothing outside of this module asks which world it is in.

#[cfg(virtual_time)]
mod simulated;
#[cfg(not(virtual_time))]
mod threads;

#[doc(no_inline)]
pub use core::sync::atomic::Ordering;
#[cfg(virtual_time)]
pub use simulated::{
    AtomicPtr, AtomicU64, LOOK_EVERY, Mutex, MutexGuard, RwLock, clock, compute, copied, copy, elapsed,
    fence, guest, hand_over, kick, now, pause, read_at_once, read_page, rest, run, thread_local, zero_page,
};
pub use slat_machine::{Costs, Job, JobStats};
#[cfg(not(virtual_time))]
pub use threads::{
    AtomicPtr, AtomicU64, LOOK_EVERY, Mutex, MutexGuard, NO_THREAD, RwLock, clock, compute, copied, copy,
    cpus, elapsed, fence, guest, hand_over, kick, now, pause, pin, read_at_once, read_page, rest, run,
    thread_local, zero_page,
};

/// What a run took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunStats {
    /// From the beginning until the last job of the first job's kind had ended.
    pub wall_ns: u64,
    /// In the order given. Threads cannot tell how long they waited or slept.
    pub jobs: Vec<JobStats>,
    /// The cache lines that were fought over, hottest first, 16 at most. On threads they cannot be seen.
    pub lines: Vec<ContendedLine>,
    /// Kicks sent; none on threads, which need none.
    pub kicks: u64,
    /// Shared operations simulated; none on threads.
    pub events: u64,
    /// Times that the system took a CPU away from a job; none in virtual time.
    pub preemptions: u64,
}

/// Cache lines that were fought over at one place of the program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContendedLine {
    /// What lies in it, or where it is.
    pub name: String,
    /// Where that place is: "sync/baselines.rs:141".
    pub site: String,
    /// How many of them.
    pub lines: u64,
    /// How often they changed hands.
    pub transfers: u64,
    /// How long others waited for them, all together.
    pub waited_ns: u64,
}

impl RunStats {
    /// The share of their time that jobs of the first job's kind waited, 0 to 1.
    pub fn waiting(&self) -> f64 {
        let kind = self.jobs.first().map_or("", |job| job.name);
        let of_kind = || self.jobs.iter().filter(|job| job.name == kind);
        let all: u64 = of_kind().map(|job| job.ns).sum();
        of_kind().map(|job| job.waiting_ns).sum::<u64>() as f64 / all.max(1) as f64
    }
}
