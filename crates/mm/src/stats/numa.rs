//! Event counts of NUMA balancing in an address space: sharded counters, summed when they are read.

use crate::shards::Shards;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why the scanner skipped a page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Skip {
    /// Its frame has more than one reference: shared by a fork, merged, or a file's.
    Shared,
    /// A device has pinned it.
    Pinned,
    /// It is protnone since an earlier scan, and no thread has accessed it since.
    Already,
    /// Its mapping allows no access.
    NoAccess,
    /// Its mapping is of a shared file.
    File,
}

impl Skip {
    /// Every reason.
    pub const ALL: [Self; 5] = [Self::Shared, Self::Pinned, Self::Already, Self::NoAccess, Self::File];
}

/// Index of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counted {
    Scanned,
    Protnone,
    Hint,
    Local,
    Migrated,
    NoRoom,
    Notified,
    Told,
    Flushed,
    /// The first of one counter for each reason.
    Skipped,
}

const COUNTERS: usize = Counted::Skipped as usize + Skip::ALL.len();

/// The counters, one set for each shard of threads.
#[derive(Debug)]
pub(crate) struct Counters(Shards<[AtomicU64; COUNTERS]>);

/// Event counts of NUMA balancing in an address space. Pages are 4 KiB; a huge page counts as 512.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NumaStats {
    /// Pages of address space scanned, in eligible mappings.
    pub scanned: u64,
    /// Pages that became protnone.
    pub protnone: u64,
    /// Hint faults; a fault on a huge page counts once.
    pub hint_faults: u64,
    /// Hint faults whose page was on the faulting node.
    pub local_faults: u64,
    /// Pages moved to the faulting node.
    pub migrated: u64,
    /// Moves that failed because the node had no free frame.
    pub no_room: u64,
    /// Notifications by the scanner, each of all secondary MMUs.
    pub notified: u64,
    /// Changes reported in these: of a page, a huge page, or a run of neighbours.
    pub told: u64,
    /// Flushes requested in these, right after a change.
    pub flushed: u64,
    skipped: [u64; Skip::ALL.len()],
}

impl NumaStats {
    /// Returns the number of pages skipped for this reason. In mappings that are skipped as a whole
    /// ([`Skip::File`], [`Skip::NoAccess`]) every page counts, present or not.
    pub fn skipped(&self, why: Skip) -> u64 {
        self.skipped[why as usize]
    }
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self(Shards::new())
    }

    pub(crate) fn add(&self, event: Counted, count: u64) {
        self.0.mine()[event as usize].fetch_add(count, Relaxed);
    }

    pub(crate) fn skip(&self, why: Skip, pages: u64) {
        self.0.mine()[Counted::Skipped as usize + why as usize].fetch_add(pages, Relaxed);
    }

    pub(crate) fn sum(&self) -> NumaStats {
        let total = |at: usize| self.0.iter().map(|shard| shard[at].load(Relaxed)).sum();
        let of = |event: Counted| total(event as usize);
        NumaStats {
            scanned: of(Counted::Scanned),
            protnone: of(Counted::Protnone),
            hint_faults: of(Counted::Hint),
            local_faults: of(Counted::Local),
            migrated: of(Counted::Migrated),
            no_room: of(Counted::NoRoom),
            notified: of(Counted::Notified),
            told: of(Counted::Told),
            flushed: of(Counted::Flushed),
            skipped: std::array::from_fn(|why| total(Counted::Skipped as usize + why)),
        }
    }
}
