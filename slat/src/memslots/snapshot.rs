//! `Snapshot`: one version of the memslots, held for look-ups that agree with each other.

use super::generation::Generation;
use crate::dirty::mark::KnownLogs;
use crate::slots::Hint;
use crate::slots::publish::Reading;
use crate::sync::readside::Borrowed;
use crate::{Gfn, Hva, Idle, Slot, SlotId, Span};
use core::fmt;
use core::marker::PhantomData;

/// One version of the slots. All look-ups in it agree with each other.
///
/// `Nothing` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
///
/// ```
/// # use slat::{*, table::formats::Npt4};
/// # struct Nothing;
/// # impl Host for Nothing {
/// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
/// # }
/// # let mut idle = Idle::take().unwrap();
/// # let vm = Vm::<Npt4, _>::builder(Nothing).build().unwrap();
/// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(16), 16, Hva(0x7000_0000))))?;
/// let slots = vm.memory();
/// let snapshot = slots.snapshot(&mut idle);
/// for slot in snapshot.range(Span::new(Gfn(0), Gfn(20))) {
///     assert_eq!(snapshot.get(slot.id), Some(slot));
/// }
/// # Ok::<(), SlotError>(())
/// ```
/// A snapshot's answers are copies, or borrow it:
///
/// ```compile_fail,E0505
/// # use slat::*;
/// # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
/// let slots = vm.memory();
/// let snapshot = slots.snapshot(idle);
/// let mut all = snapshot.iter();
/// drop(snapshot);
/// all.next();
/// # }
/// ```
/// While a snapshot exists, its thread cannot change the slots:
///
/// ```compile_fail,E0499
/// # use slat::*;
/// # fn f<F: Format, H: Host>(vm: &Vm<F, H>, idle: &mut Idle) {
/// let slots = vm.memory();
/// let snapshot = slots.snapshot(idle);
/// slots.commit(idle, |tx| tx.delete(SlotId(0)));
/// snapshot.len();
/// # }
/// ```
pub struct Snapshot<'s> {
    /// Dropped before the seat: fields drop in order.
    pub(super) reading: Reading<'s>,
    pub(super) generation: Generation,
    pub(super) _seat: Borrowed<'s>,
    /// Keeps the snapshot in its thread: another thread could wait for the snapshot that it holds itself.
    pub(super) _idle: PhantomData<&'s mut Idle>,
}

impl fmt::Debug for Snapshot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl Snapshot<'_> {
    /// The slot that contains `gfn`. In a slot with private memory: the part around `gfn` that is all private or all
    /// shared.
    pub fn find(&self, gfn: Gfn) -> Option<Slot> {
        self.reading.version().find(gfn)
    }

    /// Like [`find`](Self::find), but first tries the slot in `hint`, found last in this version. Any number of threads
    /// may share a hint. A hint may be used with any number of VMs and address spaces, because it knows the version of
    /// its slot.
    #[inline]
    pub fn find_with(&self, hint: &Hint, gfn: Gfn) -> Option<Slot> {
        let name = self.reading.published().name.0;
        if let Some(slot) = hint.get(gfn, name) {
            return Some(slot);
        }
        let slot = self.find(gfn)?;
        hint.put(&slot, name);
        Some(slot)
    }

    /// The slot with the given id.
    pub fn get(&self, id: SlotId) -> Option<Slot> {
        self.reading.version().get(id)
    }

    /// Marks a store that was made to the page that `gfn` has in this version.
    pub(crate) fn mark_store(&self, gfn: Gfn) {
        KnownLogs::of(self.reading.version()).mark(Span::sized(gfn, 1));
    }

    /// The slots that contain any of `gfns`, in order.
    pub fn range(&self, gfns: Span<Gfn>) -> impl Iterator<Item = Slot> {
        self.reading.version().range(gfns)
    }

    /// All slots in order of guest frames. Slots with private memory come in parts.
    pub fn iter(&self) -> impl Iterator<Item = Slot> {
        self.range(Span::new(Gfn(0), Gfn(u64::MAX)))
    }

    /// Calls `visit` with the frames behind `hvas`, slot by slot in order of host addresses, once for each alias.
    pub fn over_hvas(&self, hvas: Span<Hva>, visit: impl FnMut(Span<Gfn>)) {
        self.reading.version().over_hvas(hvas, visit);
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.reading.version().len()
    }

    /// Whether the version has no slots.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of this version.
    pub fn generation(&self) -> Generation {
        self.generation
    }
}
