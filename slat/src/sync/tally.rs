//! Counters without a shared line: one set per seat, written by its holder only, summed on reading. [`Attempts`] is a
//! second set, per vCPU: what only a fault counts, and only when it does not succeed at once.

use super::prim::{AtomicU64, Relaxed, quiet};

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
    /// Leaves split into smaller ones, by level.
    Split2M,
    Split1G,
    /// Tables replaced by a leaf, by its level.
    Recovered2M,
    Recovered1G,
    /// Faults that gave a permission back.
    Permission,
    /// Faults that found nothing wrong any more.
    Spurious,
    /// Faults on no memslot, or writes to a read-only one.
    Mmio,
}

const COUNTS: usize = Count::Mmio as usize + 1;

named! {
    /// Why an attempt at a fault is made again, and what that costs the host. See [`Retries`](crate::Retries).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[repr(usize)]
    pub enum RetryCause {
        /// An invalidation began or ended somewhere between the stamp and the second look.
        Moved "moved",
        /// An active invalidation covers the frame.
        Covered "covered",
        /// Another thread changed the entry or the memslot first, or the hole is newer than the stamp.
        Lost "lost",
        /// The host is asked once more for the page of the same fault, in a way that may sleep.
        Asked "asked-again",
    }
}

/// One vCPU's counters of [`RetryCause`], on a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Attempts([AtomicU64; RetryCause::ALL.len()]);

impl Attempts {
    /// Adds one. Only the thread that runs the vCPU calls this.
    pub(crate) fn add(&self, why: RetryCause) {
        add(&self.0[why as usize], 1);
    }

    pub(crate) fn get(&self, why: RetryCause) -> u64 {
        quiet(&self.0[why as usize]).load(Relaxed)
    }
}

/// A counter that one thread writes: load and store need not be one operation.
#[inline(always)]
fn add(cell: &AtomicU64, many: u64) {
    let cell = quiet(cell);
    cell.store(cell.load(Relaxed).wrapping_add(many), Relaxed);
}

impl Count {
    pub(crate) fn installed(level: crate::Level) -> Self {
        [Self::Installed4K, Self::Installed2M, Self::Installed1G][usize::from(level.number()) - 1]
    }

    pub(crate) fn split(level: crate::Level) -> Self {
        if level == crate::Level::M2 { Self::Split2M } else { Self::Split1G }
    }

    pub(crate) fn recovered(level: crate::Level) -> Self {
        if level == crate::Level::M2 { Self::Recovered2M } else { Self::Recovered1G }
    }

    pub(crate) fn removed(level: crate::Level) -> Self {
        [Self::Removed4K, Self::Removed2M, Self::Removed1G][usize::from(level.number()) - 1]
    }
}

/// One seat's counters.
#[derive(Debug, Default)]
pub(crate) struct Tally([AtomicU64; COUNTS]);

impl Tally {
    /// Adds one. Only the seat's holder calls this.
    #[inline(always)]
    pub(crate) fn add(&self, what: Count) {
        self.add_many(what, 1);
    }

    /// The same for many at once.
    #[inline(always)]
    pub(crate) fn add_many(&self, what: Count, many: u64) {
        add(&self.0[what as usize], many);
    }

    pub(crate) fn get(&self, what: Count) -> u64 {
        quiet(&self.0[what as usize]).load(Relaxed)
    }
}
