//! What the LRU has done: counters of a few threads, summed when they are read.

use crate::shards::Shards;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counted {
    Passes,
    Young,
    RegionsWalked,
    RegionsSkipped,
    Evicted,
    Promoted,
    Protected,
    Refaults,
    DirectReclaims,
    Unevictable,
    StoreFailed,
    Refused,
}

const COUNTERS: usize = Counted::Refused as usize + 1;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Counters(Shards<[AtomicU64; COUNTERS]>);

/// What the LRU of an address space has done so far. Pages are of 4 KiB; a huge one counts as 512.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LruStats {
    /// Aging passes that were finished.
    pub passes: u64,
    /// Pages that they found to have been accessed.
    pub young: u64,
    /// Regions of 2 MiB that they looked at.
    pub regions_walked: u64,
    /// Regions that they passed over: the Bloom filter said that few pages are young there.
    pub regions_skipped: u64,
    /// Pages that were evicted.
    pub evicted: u64,
    /// Candidates that had been accessed after all, and are young again.
    pub promoted: u64,
    /// Candidates that were spared because pages of their tier come back too often.
    pub protected: u64,
    /// Faults on evicted pages.
    pub refaults: u64,
    /// Times that a fault had to make room first.
    pub direct_reclaims: u64,
    /// Candidates that cannot be evicted: pinned, merged, of a file that others map, or in another thread's hands.
    pub unevictable: u64,
    /// Candidates that stayed because the swap would not take them.
    pub store_failed: u64,
    /// Times that no room could be made, and a fault was refused.
    pub refused: u64,
}

impl AddAssign for LruStats {
    fn add_assign(&mut self, other: Self) {
        self.passes += other.passes;
        self.young += other.young;
        self.regions_walked += other.regions_walked;
        self.regions_skipped += other.regions_skipped;
        self.evicted += other.evicted;
        self.promoted += other.promoted;
        self.protected += other.protected;
        self.refaults += other.refaults;
        self.direct_reclaims += other.direct_reclaims;
        self.unevictable += other.unevictable;
        self.store_failed += other.store_failed;
        self.refused += other.refused;
    }
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self(Shards::new())
    }

    pub(crate) fn add(&self, what: Counted, count: u64) {
        self.0.mine()[what as usize].fetch_add(count, Relaxed);
    }

    pub(crate) fn sum(&self) -> LruStats {
        let of = |what: Counted| self.0.iter().map(|shard| shard[what as usize].load(Relaxed)).sum();
        LruStats {
            passes: of(Counted::Passes),
            young: of(Counted::Young),
            regions_walked: of(Counted::RegionsWalked),
            regions_skipped: of(Counted::RegionsSkipped),
            evicted: of(Counted::Evicted),
            promoted: of(Counted::Promoted),
            protected: of(Counted::Protected),
            refaults: of(Counted::Refaults),
            direct_reclaims: of(Counted::DirectReclaims),
            unevictable: of(Counted::Unevictable),
            store_failed: of(Counted::StoreFailed),
            refused: of(Counted::Refused),
        }
    }
}
