//! The slot hint beside each leaf table: the memslot of a fault without a search.
//!
//! One last-used slot per VM or vCPU fails under random faults; a hint per leaf table does not, because the
//! frames of one table nearly always belong to one slot. It is a copy, guarded by a sequence number (odd while
//! being written), and names the generation of the slot set that it was copied from: any later publication
//! makes it stale at once.

use crate::addr::Gfn;
use crate::slots::Slot;
use crate::slots::map::Packed;
use crate::sync::prim::{Acquire, AtomicU64, Relaxed, Release, fence};

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Hint {
    sequence: AtomicU64,
    generation: AtomicU64,
    start: AtomicU64,
    packed: [AtomicU64; 2],
}

impl Hint {
    /// The slot of `gfn` as of `generation`, if this is what the hint holds.
    #[inline]
    pub(crate) fn get(&self, gfn: Gfn, generation: u64) -> Option<Slot> {
        // ORDER(hint): Acquire before the fields, fence after them; pairs with `put`: equal and even on both
        // sides means that nothing was written between.
        let before = self.sequence.load(Acquire);
        if before & 1 == 1 || self.generation.load(Relaxed) != generation {
            return None;
        }
        let packed = Packed::from_words([self.packed[0].load(Relaxed), self.packed[1].load(Relaxed)]);
        let slot = packed.slot(Gfn(self.start.load(Relaxed)));
        // ORDER(hint): see above.
        fence(Acquire);
        (self.sequence.load(Relaxed) == before && slot.gfns.contains(gfn)).then_some(slot)
    }

    /// Remembers `slot`, found in the set of `generation`. Gives up where another thread is writing.
    pub(crate) fn put(&self, slot: &Slot, generation: u64) {
        let before = self.sequence.load(Relaxed);
        // ORDER(hint): claims the hint; Acquire keeps the fields below it.
        if before & 1 == 1 || self.sequence.compare_exchange(before, before + 1, Acquire, Relaxed).is_err() {
            return;
        }
        // ORDER(hint): the odd number before the fields, for readers on machines that reorder stores.
        fence(Release);
        self.generation.store(generation, Relaxed);
        self.start.store(slot.gfns.start.0, Relaxed);
        for (cell, word) in self.packed.iter().zip(Packed::new(slot).words()) {
            cell.store(word, Relaxed);
        }
        // ORDER(hint): the fields before the even number; pairs with `get`.
        self.sequence.store(before + 2, Release);
    }
}
