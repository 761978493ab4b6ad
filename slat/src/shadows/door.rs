//! The door of a shadow: a count of the threads that walk it for no fault, for the one that takes its tables.
//!
//! A fault of L2 need not pass: it is in a section of the read side. Invalidations, aging passes and flushes by L1 may be in none, so they
//! are counted while they walk. There are two counts. A thread that has unlinked tables turns new walks to the other count, and waits
//! until the first one is zero: a walk that began later cannot have found what was unlinked. No walk waits, and none is turned away.

use crate::sync::prim::{AcqRel, Acquire, AtomicU64, Patience, Relaxed, Release};

/// See the module's header. Two counts of 31 bits, and which one is for new walks.
#[derive(Debug, Default)]
pub(crate) struct Door(AtomicU64);

const SECOND: u64 = 1 << 63;
const BITS: u32 = 31;
const MOST: u64 = (1 << BITS) - 1;

/// A walk.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Door, u64);

/// One walk in the count that is for new ones.
fn one(word: u64) -> u64 {
    if word & SECOND == 0 { 1 } else { 1 << BITS }
}

impl Door {
    /// For a walk.
    #[inline]
    pub(crate) fn enter(&self) -> Inside<'_> {
        let mut now = self.0.load(Relaxed);
        // ORDER(door): Acquire pairs with the Release of `outlast`: a walk in the later count meets nothing that was unlinked before.
        while let Err(found) =
            self.0.compare_exchange(now, now + one(now), unless_seeded!(DoorRelaxed, Acquire), Relaxed)
        {
            now = found;
        }
        Inside(self, one(now))
    }

    /// Waits for the walks that may have met what the caller has unlinked. One caller at a time.
    pub(crate) fn outlast(&self) {
        // ORDER(door): Release: what was unlinked comes before the walks of the later count.
        // The sum's top bit is the other one, and nothing is carried.
        let before = self.0.fetch_add(SECOND, AcqRel);
        let mut patience = Patience::default();
        // ORDER(door): Acquire pairs with the Release of `Inside`: the accesses of those walks are over.
        while self.0.load(Acquire) / one(before) & MOST != 0 && !seeded!(WalksUnawaited) {
            patience.wait();
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // ORDER(door): Release, for `outlast`.
        self.0.0.fetch_sub(self.1, Release);
    }
}
