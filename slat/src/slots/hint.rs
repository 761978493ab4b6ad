//! `Hint`: the memslot that was found last, kept beside whoever asks again.
//!
//! The engine keeps one beside each leaf table. One last-used slot per VM or vCPU fails under random faults; a
//! hint per leaf table does not, because the frames of one table nearly always belong to one slot. Device models
//! may keep their own, one per queue for instance:
//!
//! ```
//! # use slat::{*, slots::Hint, table::formats::Npt4};
//! # struct Nothing;
//! # unsafe impl slat::table::TableMemory for Nothing {}
//! # impl Host for Nothing {
//! #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
//! # }
//! # let mut idle = Idle::take().unwrap();
//! # let vm = Vm::<Npt4, _>::builder(Nothing).build().unwrap();
//! # vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(16), 16, Hva(0x7000_0000))))?;
//! let hint = Hint::default();
//! let slots = vm.slots();
//! let snapshot = slots.snapshot(&mut idle);
//! assert_eq!(snapshot.find_with(&hint, Gfn(20)), snapshot.find(Gfn(20)));
//! # Ok::<(), SlotError>(())
//! ```
//! It is a copy, guarded by a sequence number (odd while being written), and names the version of the slots that
//! it was copied from: any later one makes it stale at once.

use super::Slot;
use super::packed::Packed;
use crate::addr::Gfn;
use crate::sync::prim::{Acquire, AtomicU64, Relaxed, Release, fence};

/// See the module's header. Any number of threads may share one.
#[derive(Debug, Default)]
pub struct Hint {
    sequence: AtomicU64,
    version: AtomicU64,
    start: AtomicU64,
    packed: [AtomicU64; 2],
}

impl Hint {
    /// The slot of `gfn` as of `version`, if this is what the hint holds. Versions of one address space only.
    #[inline]
    pub(crate) fn get(&self, gfn: Gfn, version: u64) -> Option<Slot> {
        // ORDER(hint): Acquire before the fields, fence after them; pairs with `put`: equal and even on both
        // sides means that nothing was written between.
        let before = self.sequence.load(Acquire);
        if before & 1 == 1 || self.version.load(Relaxed) != version {
            return None;
        }
        let packed = Packed::from_words([self.packed[0].load(Relaxed), self.packed[1].load(Relaxed)]);
        let slot = packed.slot(Gfn(self.start.load(Relaxed)));
        // ORDER(hint): see above.
        fence(Acquire);
        (self.sequence.load(Relaxed) == before && slot.gfns.contains(gfn)).then_some(slot)
    }

    /// Remembers `slot`, found in `version`. Gives up where another thread is writing.
    pub(crate) fn put(&self, slot: &Slot, version: u64) {
        let before = self.sequence.load(Relaxed);
        // ORDER(hint): claims the hint; Acquire keeps the fields below it.
        if before & 1 == 1 || self.sequence.compare_exchange(before, before + 1, Acquire, Relaxed).is_err() {
            return;
        }
        // ORDER(hint): the odd number before the fields, for readers on machines that reorder stores.
        fence(Release);
        self.version.store(version, Relaxed);
        self.start.store(slot.gfns.start.0, Relaxed);
        for (cell, word) in self.packed.iter().zip(Packed::new(slot).words()) {
            cell.store(word, Relaxed);
        }
        // ORDER(hint): the fields before the even number; pairs with `get`.
        self.sequence.store(before + 2, Release);
    }
}
