//! Event counts of the LRU: sharded counters, summed when they are read.

use crate::shards::Shards;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Index of a counter.
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

/// The counters, one set for each shard of threads.
#[derive(Debug)]
pub(crate) struct Counters(Shards<[AtomicU64; COUNTERS]>);

/// Event counts of the LRU of an address space. Pages are 4 KiB; a huge page counts as 512.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LruStats {
    /// Aging passes that were completed.
    pub passes: u64,
    /// Pages that passes found accessed.
    pub young: u64,
    /// Regions of 2 MiB that passes scanned.
    pub regions_walked: u64,
    /// Regions that passes skipped because the Bloom filter said that few pages are young there.
    pub regions_skipped: u64,
    /// Pages evicted.
    pub evicted: u64,
    /// Eviction candidates that had been accessed since aging and became young again.
    pub promoted: u64,
    /// Eviction candidates spared because pages of their tier refault too often.
    pub protected: u64,
    /// Faults on evicted pages.
    pub refaults: u64,
    /// Reclaims that a fault had to make first.
    pub direct_reclaims: u64,
    /// Eviction candidates that cannot be evicted: pinned, merged, of a file that others map, or in use by
    /// another thread.
    pub unevictable: u64,
    /// Eviction candidates that stayed because the swap did not take them.
    pub store_failed: u64,
    /// Faults refused because no room could be made.
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
