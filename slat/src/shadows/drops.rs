//! Whether anything was taken from leaves of shadows that the TLB of some vCPU may still have.
//!
//! A fault takes a leaf that does not serve, and flushes nothing; an invalidation by the host flushes, but later; a log withdraws write. A flush
//! by L1 must make a vCPU forget what any of them took, and nothing where none did. So each **says before that it is under way**, and takes a
//! number **after** it was done:
//!
//! * A vCPU that meets no leaf any more finds it under way, or numbered.
//! * A number from before would not do: another vCPU may forget, load the leaf once more, and only then is it taken.

use super::Numbers;
use crate::sync::prim::{Acquire, AtomicU64, Relaxed, Release};
use crate::table::entry::Version;
use core::cell::Cell;

/// See the module's header. One for all shadows of an address space: L2's tag is flushed as a whole.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    under_way: AtomicU64,
    /// The newest number of those that are done.
    newest: AtomicU64,
    /// All vCPUs have forgotten what was done by then.
    settled: AtomicU64,
}

impl Drops {
    /// For one that may take something.
    pub(crate) fn taking<'a, N: Numbers>(&'a self, active: &'a N) -> Taking<'a, N> {
        Taking { drops: self, active, begun: Cell::new(false) }
    }

    /// Whether anything was taken since that number, or is being taken. To be asked after a look at the entries.
    pub(crate) fn since(&self, forgot: Version) -> bool {
        // ORDER(drops): Acquire pairs with the end of `Taking`: where none is under way, their numbers are seen.
        let under_way = self.under_way.load(Acquire) > 0;
        under_way || self.newest.load(Relaxed) > forgot.0
    }

    /// What all vCPUs have to forget, if there is anything: a number for [`settled`](Self::settled).
    pub(crate) fn unsettled(&self) -> Option<Version> {
        let settled = Version(self.settled.load(Relaxed));
        self.since(settled).then(|| Version(self.newest.load(Relaxed)))
    }

    /// All vCPUs have forgotten it.
    pub(crate) fn settled(&self, newest: Version) {
        // Told apart from the drops by number alone.
        self.settled.fetch_max(newest.0, Relaxed);
    }
}

/// A walk that may take something from leaves.
#[derive(Debug)]
pub(crate) struct Taking<'a, N: Numbers> {
    drops: &'a Drops,
    pub(crate) active: &'a N,
    begun: Cell<bool>,
}

impl<N: Numbers> Taking<'_, N> {
    /// Before the exchange that takes something.
    #[inline]
    pub(crate) fn begin(&self) {
        if !self.begun.replace(true) {
            self.start();
        }
    }

    #[cold]
    fn start(&self) {
        if seeded!(DropNotedLate) {
            return;
        }
        // ORDER(drops): before the exchange, whose Release brings it along to a thread that meets what it has left.
        self.drops.under_way.fetch_add(1, Relaxed);
        if seeded!(DropNotedEarly) {
            self.finish();
        }
    }

    #[cold]
    fn finish(&self) {
        self.drops.newest.fetch_max(self.active.fresh().0, Relaxed);
        // ORDER(drops): the number first; pairs with `since`.
        if !seeded!(DropNotedLate) {
            self.drops.under_way.fetch_sub(1, Release);
        }
    }
}

impl<N: Numbers> Drop for Taking<'_, N> {
    fn drop(&mut self) {
        if self.begun.get() && !seeded!(DropNotedEarly) {
            self.finish();
        }
    }
}
