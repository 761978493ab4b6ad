//! Drops: whether anything was taken from leaves of shadows that the TLB of some vCPU may still hold.
//!
//! A fault takes a leaf that does not serve, and flushes nothing. An invalidation by the host flushes, but later. A log
//! withdraws write. A flush by L1 must make a vCPU flush what any of them took, and nothing otherwise. Each taker
//! therefore **announces itself before** the edit, and takes a number **after** it:
//!
//! * A vCPU that finds the leaf gone sees the taker under way, or its number.
//! * A number taken before the edit would not suffice: another vCPU may flush, and load the leaf again before the edit.

use crate::active::Active;
use crate::sync::prim::{AtomicU64, Relaxed};
use crate::table::entry::Version;
use core::cell::Cell;

/// The drops of all shadows of an address space, since L2's tag is flushed as a whole. See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    under_way: AtomicU64,
    /// The newest number of a finished drop.
    newest: AtomicU64,
    /// All vCPUs have flushed the drops up to this number.
    settled: AtomicU64,
}

impl Drops {
    /// Returns a guard for a walk that may take something.
    pub(crate) fn taking<'a>(&'a self, active: &'a Active) -> Dropping<'a> {
        Dropping { drops: self, active, begun: Cell::new(false) }
    }

    /// Whether anything was taken since number `forgot`, or is being taken. Called after a look at the entries.
    pub(crate) fn since(&self, forgot: Version) -> bool {
        // Pairs with the end of `Dropping`: if none is under way, their numbers are seen.
        let under_way = self.under_way.load(order!(drops.look, Acquire)) > 0;
        under_way || self.newest.load(Relaxed) > forgot.0
    }

    /// Returns the newest drop that some vCPU may not have flushed, for [`settled`](Self::settled).
    pub(crate) fn unsettled(&self) -> Option<Version> {
        let settled = Version(self.settled.load(Relaxed));
        self.since(settled).then(|| Version(self.newest.load(Relaxed)))
    }

    /// Records that all vCPUs have flushed up to `newest`.
    pub(crate) fn settled(&self, newest: Version) {
        // Only the number is compared, so Relaxed is enough.
        self.settled.fetch_max(newest.0, Relaxed);
    }
}

/// A walk that may take something from leaves.
pub(crate) struct Dropping<'a> {
    drops: &'a Drops,
    pub(crate) active: &'a Active,
    begun: Cell<bool>,
}

impl Dropping<'_> {
    /// Called before the exchange that takes something.
    #[inline]
    pub(crate) fn begin(&self) {
        if !self.begun.replace(true) {
            self.start();
        }
    }

    #[cold]
    fn start(&self) {
        // Before the exchange, whose Release carries it to a thread that finds the leaf gone.
        self.drops.under_way.fetch_add(1, Relaxed);
    }

    #[cold]
    fn finish(&self) {
        self.drops.newest.fetch_max(self.active.fresh().0, Relaxed);
        // The number first; pairs with `since`.
        self.drops.under_way.fetch_sub(1, order!(drops.end, Release));
    }
}

impl Drop for Dropping<'_> {
    fn drop(&mut self) {
        if self.begun.get() {
            self.finish();
        }
    }
}
