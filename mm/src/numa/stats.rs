//! What balancing has done to an address space: counters of a few threads, summed when they are read.

use crate::shards::Shards;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why the scanner left a page as it was.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Skip {
    /// Its frame has more than one reference: it is shared after a fork, merged with others, or a file's.
    Shared,
    /// A device uses it.
    Pinned,
    /// It is protnone since an earlier scan: no thread has accessed it since.
    Already,
    /// Its mapping allows no access.
    NoAccess,
    /// Its mapping is one of a shared file.
    File,
}

impl Skip {
    /// Every reason.
    pub const ALL: [Self; 5] = [Self::Shared, Self::Pinned, Self::Already, Self::NoAccess, Self::File];
}

/// What is counted.
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
    /// Followed by one counter for each reason.
    Skipped,
}

const COUNTERS: usize = Counted::Skipped as usize + Skip::ALL.len();

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Counters(Shards<[AtomicU64; COUNTERS]>);

/// What balancing has done to an address space so far. Pages are of 4 KiB: a huge one counts as 512.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NumaStats {
    /// Pages of address space that the scanner passed over, of mappings that it may touch.
    pub scanned: u64,
    /// Pages that became protnone.
    pub protnone: u64,
    /// Hint faults; one on a huge page is one.
    pub hint_faults: u64,
    /// Of these, how many found their page on the node that asked.
    pub local_faults: u64,
    /// Pages that were moved to the node that asked.
    pub migrated: u64,
    /// Times that a page was to move and its node had no frame left.
    pub no_room: u64,
    /// Notifications by the scanner, each for all secondary MMUs.
    pub notified: u64,
    /// In these, changes told: of a page, a huge page, or a run of neighbours.
    pub told: u64,
    /// In these, flushes asked for right after a change.
    pub flushed: u64,
    skipped: [u64; Skip::ALL.len()],
}

impl NumaStats {
    /// Pages that the scanner left as they were for this reason. Of mappings that it does not look into at all
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
