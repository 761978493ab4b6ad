//! Counters without a shared line: one set per seat, written by its holder only, summed on reading.

use super::prim::{AtomicU64, Relaxed};

/// What is counted on the paths that run in parallel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Count {
    /// Leaves installed, by level: 4K, 2M, 1G. Each is a fault that mapped.
    Installed4K,
    Installed2M,
    Installed1G,
    /// Leaves taken away, by level.
    Removed4K,
    Removed2M,
    Removed1G,
    /// Faults that gave a permission back.
    Permission,
    /// Faults that found nothing wrong any more.
    Spurious,
    /// Faults on no memslot, or writes to a read-only one.
    Mmio,
    /// Attempts that had to be made again.
    Retry,
    /// Times that the lock of a baseline policy was waited for …
    LockWaits,
    /// … and how long, in nanoseconds, where there is a clock.
    LockWaitNs,
}

const COUNTS: usize = Count::LockWaitNs as usize + 1;

impl Count {
    pub(crate) fn installed(level: crate::Level) -> Self {
        [Self::Installed4K, Self::Installed2M, Self::Installed1G][usize::from(level.0) - 1]
    }

    pub(crate) fn removed(level: crate::Level) -> Self {
        [Self::Removed4K, Self::Removed2M, Self::Removed1G][usize::from(level.0) - 1]
    }
}

/// One seat's counters.
#[derive(Debug, Default)]
pub(crate) struct Tally([AtomicU64; COUNTS]);

impl Tally {
    /// Adds one. Only the seat's holder calls this, so load and store need not be one operation.
    #[inline(always)]
    pub(crate) fn add(&self, what: Count) {
        self.add_many(what, 1);
    }

    /// Adds `count`, as [`add`](Self::add) does.
    #[inline(always)]
    pub(crate) fn add_many(&self, what: Count, count: u64) {
        let cell = &self.0[what as usize];
        cell.store(cell.load(Relaxed).wrapping_add(count), Relaxed);
    }

    pub(crate) fn get(&self, what: Count) -> u64 {
        self.0[what as usize].load(Relaxed)
    }
}
