//! Event counts of an address space: sharded counters, summed when they are read.

pub(crate) mod numa;

use crate::prim::AtomicU64;
use crate::shards::Shards;
use slat::Reason;
use std::sync::atomic::Ordering::Relaxed;

/// Index of a counter.
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
    /// The first of one counter for each reason.
    Notified,
}

const COUNTERS: usize = Counted::Notified as usize + Reason::ALL.len();

/// The counters, one set for each shard of threads.
#[derive(Debug)]
pub(crate) struct Counters(Shards<[AtomicU64; COUNTERS]>);

/// Event counts of an address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MmStats {
    /// Faults, of secondary MMUs and of this process.
    pub faults: u64,
    /// Faults that got a new page of zeroes.
    pub demand_zero: u64,
    /// Pages copied because a write met a share.
    pub cow_breaks: u64,
    /// Pages made writable in place, including copies of shares.
    pub reuses: u64,
    /// Huge pages mapped at faults.
    pub huge_mappings: u64,
    /// Huge pages whose mapping was split.
    pub splits: u64,
    /// Pages moved to other frames; a huge page counts once.
    pub migrated: u64,
    /// Pages taken by the reaper; a huge page counts once.
    pub reaped: u64,
    /// Reaps that stopped because they would have had to wait.
    pub reap_again: u64,
    /// Pages swapped out, including file pages that were dropped without a copy.
    pub swapped_out: u64,
    /// Pages read back and mapped again.
    pub swapped_in: u64,
    /// Times that a thread waited for a page lock.
    pub lock_waits: u64,
    notified: [u64; Reason::ALL.len()],
}

impl MmStats {
    /// Returns the number of changes with this reason of which secondary MMUs were notified.
    pub fn notified(&self, why: Reason) -> u64 {
        self.notified[index(why)]
    }
}

fn index(why: Reason) -> usize {
    Reason::ALL.iter().position(|&other| other == why).unwrap_or(0)
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self(Shards::new())
    }

    pub(crate) fn add(&self, event: Counted) {
        self.0.mine()[event as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn add_notified(&self, why: Reason) {
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
