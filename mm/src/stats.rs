//! What an address space has done: counters of a few threads, summed when they are read.

use crate::prim::AtomicU64;
use crate::shards::Shards;
use slat::Why;
use std::sync::atomic::Ordering::Relaxed;

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counted {
    Fault,
    DemandZero,
    CowBreak,
    Reuse,
    Huge,
    Split,
    Migrated,
    Reaped,
    ReapAgain,
    SwappedOut,
    SwappedIn,
    LockWait,
    /// Followed by one counter for each reason.
    Notified,
}

const COUNTERS: usize = Counted::Notified as usize + Why::ALL.len();

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Counters(Shards<[AtomicU64; COUNTERS]>);

/// What an address space has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MmStats {
    /// Faults, of secondary MMUs and of this process.
    pub faults: u64,
    /// Of these, how many were given a fresh page of zeroes.
    pub demand_zero: u64,
    /// Pages copied because a write met a share.
    pub cow_breaks: u64,
    /// Pages made writable in place, copies of shares among them.
    pub reuses: u64,
    /// Huge pages mapped at a fault.
    pub huge_mappings: u64,
    /// Huge pages whose mapping was divided.
    pub splits: u64,
    /// Pages moved to other frames; huge ones count once.
    pub migrated: u64,
    /// Pages that the reaper took; huge ones count once.
    pub reaped: u64,
    /// Times that it would have had to wait, and gave up.
    pub reap_again: u64,
    /// Pages that were swapped out, and pages of files that could go without.
    pub swapped_out: u64,
    /// Pages that were read back and mapped again.
    pub swapped_in: u64,
    /// Times that a thread found the page lock of a region taken, and waited for it.
    pub lock_waits: u64,
    notified: [u64; Why::ALL.len()],
}

impl MmStats {
    /// Changes of this kind that secondary MMUs were told of, if there were any.
    pub fn notified(&self, why: Why) -> u64 {
        self.notified[index(why)]
    }
}

fn index(why: Why) -> usize {
    Why::ALL.iter().position(|&other| other == why).unwrap_or(0)
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self(Shards::new())
    }

    pub(crate) fn add(&self, event: Counted) {
        self.0.mine()[event as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn add_notified(&self, why: Why) {
        self.0.mine()[Counted::Notified as usize + index(why)].fetch_add(1, Relaxed);
    }

    pub(crate) fn sum(&self) -> MmStats {
        let total = |at: usize| self.0.iter().map(|shard| shard[at].load(Relaxed)).sum();
        let of = |event: Counted| total(event as usize);
        MmStats {
            faults: of(Counted::Fault),
            demand_zero: of(Counted::DemandZero),
            cow_breaks: of(Counted::CowBreak),
            reuses: of(Counted::Reuse),
            huge_mappings: of(Counted::Huge),
            splits: of(Counted::Split),
            migrated: of(Counted::Migrated),
            reaped: of(Counted::Reaped),
            reap_again: of(Counted::ReapAgain),
            swapped_out: of(Counted::SwappedOut),
            swapped_in: of(Counted::SwappedIn),
            lock_waits: of(Counted::LockWait),
            notified: std::array::from_fn(|why| total(Counted::Notified as usize + why)),
        }
    }
}
