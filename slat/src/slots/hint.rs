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
//! It names the version of the slots that it was copied from: any later one, or another VM's, makes it stale at once.

use super::Slot;
use super::packed::Packed;
use super::remembered::Remembered;
use crate::addr::Gfn;

/// See the module's header. Any number of threads may share one.
#[derive(Debug, Default)]
pub struct Hint(Remembered);

impl Hint {
    /// The slot of `gfn` as of `version`, if this is what the hint holds. For one hint all versions are numbers of one
    /// address space (the engine's own, beside leaf tables), or all are [names](super::publish::Name).
    #[inline]
    pub(crate) fn get(&self, gfn: Gfn, version: u64) -> Option<Slot> {
        let [start, place, name] = self.0.get(version)?;
        Some(Packed::from_words([place, name]).slot(Gfn(start))).filter(|slot| slot.gfns.contains(gfn))
    }

    /// Remembers `slot`, found in `version`. Gives up where another thread is writing.
    pub(crate) fn put(&self, slot: &Slot, version: u64) {
        let [place, name] = Packed::new(slot).words();
        self.0.put([slot.gfns.start.0, place, name], version);
    }

    /// Forgets it. By who has it alone: another space may count to the same version.
    #[inline]
    pub(crate) fn forget(&self) {
        self.0.forget();
    }
}
