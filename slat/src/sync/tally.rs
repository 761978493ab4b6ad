//! Counters without a shared line: one set per seat, which only its holder writes; a reader sums them. [`Attempts`] is
//! a second set, per vCPU, which only a fault that needs another attempt writes.

use super::prim::{AtomicU64, Relaxed, quiet};

/// Events counted on parallel paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Count {
    /// Leaves installed, by level: 4K, 2M, 1G. Each is a fault that mapped.
    Installed4K,
    Installed2M,
    Installed1G,
    /// Leaves removed, by level.
    Removed4K,
    Removed2M,
    Removed1G,
    /// Leaves split into smaller ones, by level.
    Split2M,
    Split1G,
    /// Tables replaced by a leaf, by its level.
    Recovered2M,
    Recovered1G,
    /// Faults that restored a permission.
    Permission,
    /// Faults whose entry already allowed the access.
    Spurious,
    /// Faults without a memslot, or writes to a read-only one.
    Mmio,
}

const COUNTS: usize = Count::Mmio as usize + 1;

named! {
    /// Cause of another attempt at a fault, or of another question to the host. See [`Retries`](crate::Retries).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[repr(usize)]
    pub enum RetryCause {
        /// An invalidation began or ended somewhere between the stamp and its check.
        Moved "moved",
        /// An active invalidation covers the frame.
        Covered "covered",
        /// Another thread changed the entry or the memslot first, or the hole is newer than the stamp.
        Lost "lost",
        /// The host is asked again for the page of the same fault, by a call that may sleep.
        Asked "asked-again",
    }
}

/// Results of faults of a nested guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum NestedCount {
    /// Faults that mapped a page.
    Mapped,
    /// Faults whose entry already allowed the access.
    Spurious,
    /// Faults without a memslot, or writes to a read-only one.
    Mmio,
    /// Faults that the guest's own table refuses.
    Refused,
}

const NESTED_COUNTS: usize = NestedCount::Refused as usize + 1;

/// One vCPU's counters by [`RetryCause`] and by [`NestedCount`], on their own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Attempts([AtomicU64; RetryCause::ALL.len()], [AtomicU64; NESTED_COUNTS]);

const _: () = assert!(cfg!(any(loom, shuttle, virtual_time)) || size_of::<Attempts>() == 64);

impl Attempts {
    /// Adds one. Only the thread that runs the vCPU calls this.
    pub(crate) fn add(&self, why: RetryCause) {
        add(&self.0[why as usize], 1);
    }

    pub(crate) fn get(&self, why: RetryCause) -> u64 {
        quiet(&self.0[why as usize]).load(Relaxed)
    }

    /// Adds one. Only the thread that runs the vCPU calls this.
    #[inline(always)]
    pub(crate) fn add_nested(&self, what: NestedCount) {
        add(&self.1[what as usize], 1);
    }

    pub(crate) fn get_nested(&self, what: NestedCount) -> u64 {
        quiet(&self.1[what as usize]).load(Relaxed)
    }
}

/// Adds to a counter that one thread writes: load and store need not be one operation.
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

    /// Adds `many`. Only the seat's holder calls this.
    #[inline(always)]
    pub(crate) fn add_many(&self, what: Count, many: u64) {
        add(&self.0[what as usize], many);
    }

    pub(crate) fn get(&self, what: Count) -> u64 {
        quiet(&self.0[what as usize]).load(Relaxed)
    }
}
