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

mod run_stats;
#[cfg(virtual_time)]
mod simulated;
#[cfg(not(virtual_time))]
mod threads;

#[doc(no_inline)]
pub use core::sync::atomic::Ordering;
pub use run_stats::{ContendedLine, RunStats};
#[cfg(virtual_time)]
pub use simulated::{
    AtomicPtr, AtomicU64, LOOK_EVERY, Mutex, MutexGuard, RwLock, clock, compute, copied, copy, elapsed,
    fence, guest, hand_over, kick, now, pause, read_at_once, read_page, rest, run, thread_local, zero_page,
};
pub use slat_machine::{Costs, Job, JobStats};
#[cfg(not(virtual_time))]
pub use threads::{
    AtomicPtr, AtomicU64, LOOK_EVERY, Line, Mutex, MutexGuard, NO_THREAD, RwLock, clock, compute, copied,
    copy, cpus, elapsed, fence, guest, hand_over, kick, now, pause, pin, read_at_once, read_page, rest, run,
    thread_local, zero_page,
};
