//! Counted walks of a shadow: those outside of a fault, for a thread that frees its tables.
//!
//! A fault of L2 need not be counted: it is in a section of the read side. Invalidations, aging passes and flushes by L1 may
//! be in none, so `WalkCount` counts them while they walk. There are two counts. A thread that has unlinked tables directs
//! new walks to the other count, and waits until the first is zero: a later walk cannot find the tables.

use crate::sync::prim::{AtomicU64, Patience, Relaxed};

/// Two counts of 31 bits, and a bit that selects the one for new walks. See the module's header.
#[derive(Debug, Default)]
pub(crate) struct WalkCount(AtomicU64);

const SECOND: u64 = 1 << 63;
const BITS: u32 = 31;
const COUNT: u64 = (1 << BITS) - 1;

/// A walk that is counted until this is dropped.
pub(crate) struct CountedWalk<'a>(&'a WalkCount, u64);

/// One walk, in the count for new ones.
fn one(word: u64) -> u64 {
    if word & SECOND == 0 { 1 } else { 1 << BITS }
}

impl WalkCount {
    /// Enters for a walk.
    #[inline]
    pub(crate) fn enter(&self) -> CountedWalk<'_> {
        let mut now = self.0.load(Relaxed);
        // Pairs with the Release of `outlast`: a later walk meets no unlinked table.
        while let Err(found) =
            self.0.compare_exchange(now, now + one(now), order!(walks.enter, Acquire), Relaxed)
        {
            now = found;
        }
        #[cfg(test)]
        crate::sync::longest::begins();
        CountedWalk(self, one(now))
    }

    /// Waits for the walks that may have met the tables that the caller has unlinked. One caller at a time.
    pub(crate) fn outlast(&self) {
        // The unlinking before the walks of the later count. The addition flips only the top bit.
        let before = self.0.fetch_add(SECOND, order!(walks.unlink, Release));
        let mut patience = Patience::default();
        // Pairs with the Release of `CountedWalk`: the accesses of those walks are over.
        while self.0.load(order!(walks.wait, Acquire)) / one(before) & COUNT != 0 {
            patience.wait();
        }
    }
}

impl Drop for CountedWalk<'_> {
    fn drop(&mut self) {
        // For `outlast`.
        self.0.0.fetch_sub(self.1, order!(walks.leave, Release));
        #[cfg(test)]
        crate::sync::longest::ends();
    }
}
