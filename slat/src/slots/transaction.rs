//! A transaction: one or many slot operations, published as one.
//!
//! ```text
//! lock the transaction mutex
//!   edit copies of the trees             errors end here: nothing was published, nothing is undone by allocating
//!   begin an invalidation of the gfns that change      faults there wait: they are never taken for MMIO
//!     zap what deleted slots mapped, flush once
//!     publish the new set; number it
//!   end                                  faults go on, and see the new set
//!   wait for a grace period, reuse the old set's own nodes
//! ```
//! A transaction waits for vCPUs and for readers, so it takes `&mut Idle`; its mutex is never taken inside
//! notify or a walk.

use super::{RetiredNodes, Set, Slot, SlotId, SlotSets, Trees, tree::Edit};
use crate::addr::{Gfn, PAGE_SHIFT, Span};
use crate::host::Host;
use crate::notify::Why;
use crate::notify::invalidation::{Invalidation, Range};
use crate::sync::idle::Idle;
use crate::table::format::Format;
use crate::vm::Vm;
use alloc::vec::Vec;
use core::fmt;

/// Why a slot operation was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotError {
    /// A slot must have at least one page.
    Empty(SlotId),
    /// The host address is not a multiple of 4 KiB, or the slot would reach past the last address.
    BadHva(SlotId),
    /// The frames reach past what the VM's page-table format can map.
    OutOfReach(SlotId),
    /// There is a slot of this name.
    Exists(SlotId),
    /// Some frames belong to another slot.
    Overlaps(SlotId, SlotId),
    /// There is no slot of this name.
    Missing(SlotId),
    /// The VM has as many slots as it was built for.
    TooMany(usize),
    /// The host is out of memory for the set's own nodes.
    NoMemory,
}

impl fmt::Display for SlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty(id) => write!(f, "memslot {id} has no pages"),
            Self::BadHva(id) => write!(f, "memslot {id}: host address unaligned or out of range"),
            Self::OutOfReach(id) => write!(f, "memslot {id} reaches past what the page-table format maps"),
            Self::Exists(id) => write!(f, "memslot {id} exists already"),
            Self::Overlaps(id, other) => write!(f, "memslot {id} overlaps memslot {other}"),
            Self::Missing(id) => write!(f, "there is no memslot {id}"),
            Self::TooMany(limit) => write!(f, "this VM allows {limit} memslots"),
            Self::NoMemory => f.write_str("out of memory for memslots"),
        }
    }
}

impl core::error::Error for SlotError {}

impl From<super::pool::NoMemory> for SlotError {
    fn from(_: super::pool::NoMemory) -> Self {
        Self::NoMemory
    }
}

/// The memslots of a VM, for users: see [`Vm::slots`].
#[derive(Debug)]
pub struct Memslots<'vm, F: Format, H: Host> {
    pub(crate) vm: &'vm Vm<F, H>,
}

impl<F: Format, H: Host> Memslots<'_, F, H> {
    /// Runs `operations` and publishes what they made, at once. An error, theirs or ours, publishes nothing.
    ///
    /// ```
    /// # use slat::{*, table::formats::Npt4};
    /// # struct Nothing;
    /// # unsafe impl slat::table::TableMemory for Nothing {}
    /// # impl Host for Nothing {
    /// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
    /// # }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Npt4, _>::builder(Nothing).build().unwrap();
    /// let low = Slot::new(SlotId(0), Gfn(0), 512, Hva(0x7000_0000));
    /// let high = Slot::new(SlotId(1), Gfn(0x10_0000), 512, Hva(0x7000_0000)); // an alias: fine
    /// vm.slots().commit(&mut idle, |tx| {
    ///     tx.create(low)?;
    ///     tx.create(high)
    /// })?;
    ///
    /// let refused = vm.slots().commit(&mut idle, |tx| {
    ///     tx.delete(SlotId(0))?;
    ///     tx.create(Slot::new(SlotId(2), Gfn(0x10_01ff), 1, Hva(0)))
    /// });
    /// assert_eq!(refused, Err(SlotError::Overlaps(SlotId(2), SlotId(1))));
    /// assert_eq!(vm.slots().find(&mut idle, Gfn(3)), Some(low), "nothing half-done");
    /// # Ok::<(), SlotError>(())
    /// ```
    pub fn commit<R>(
        &self,
        idle: &mut Idle,
        operations: impl FnOnce(&mut Transaction<'_>) -> Result<R, SlotError>,
    ) -> Result<R, SlotError> {
        let vm = self.vm;
        let mut trees = vm.memslots.writer.lock();
        let mut tx = Transaction::new(&mut trees, 1 << F::FRAME_BITS, vm.policy.max_slots);
        let result = operations(&mut tx)?;
        if tx.changed.is_empty() {
            return Ok(result);
        }
        let mut change = Invalidation::begin(vm, Range::Gfns(tx.changed), Why::Slot);
        change.apply_to(idle, &tx.deleted).settle();

        let (set, retired) = tx.finish();
        // SAFETY: under the transaction mutex; every transaction ends in a grace period, so one has passed.
        unsafe { vm.memslots.publish(set) };
        vm.active.next_generation();
        drop(change);

        vm.reads.synchronize();
        // SAFETY: retired from these trees before the grace period that just ended.
        unsafe { trees.reclaim(retired) };
        Ok(result)
    }

    /// The slot that holds `gfn`.
    pub fn find(&self, _idle: &mut Idle, gfn: Gfn) -> Option<Slot> {
        self.sets().find(&self.vm.reads, &self.vm.borrow_seat(), gfn)
    }

    /// The slot named `id`.
    pub fn get(&self, _idle: &mut Idle, id: SlotId) -> Option<Slot> {
        self.sets().find_id(&self.vm.reads, &self.vm.borrow_seat(), id)
    }

    /// Every slot of one set, in order of guest frames.
    pub fn for_each(&self, _idle: &mut Idle, visit: impl FnMut(Slot)) {
        self.sets().for_each(&self.vm.reads, &self.vm.borrow_seat(), visit);
    }

    /// How many there are. Waits for a transaction in progress.
    pub fn len(&self) -> usize {
        self.sets().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn sets(&self) -> &SlotSets {
        &self.vm.memslots
    }
}

/// The operations of one transaction, on copies. Nobody sees them before [`Memslots::commit`] ends.
pub struct Transaction<'t> {
    by_gfn: Edit<'t, u64, Slot>,
    by_hva: Edit<'t, (u64, u32), u64, u64>,
    by_id: Edit<'t, u32, u64>,
    /// Hull of the frames whose slot changes.
    changed: Span<Gfn>,
    /// What deleted slots held: to be zapped.
    deleted: Vec<Span<Gfn>>,
    frames: u64,
    limit: usize,
    len: usize,
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("changed", &self.changed).finish_non_exhaustive()
    }
}

impl<'t> Transaction<'t> {
    fn new(trees: &'t mut Trees, frames: u64, limit: usize) -> Self {
        let len = trees.by_gfn.len();
        Self {
            by_gfn: trees.by_gfn.edit(),
            by_hva: trees.by_hva.edit(),
            by_id: trees.by_id.edit(),
            changed: Span::new(Gfn(0), Gfn(0)),
            deleted: Vec::new(),
            frames,
            limit,
            len,
        }
    }

    /// Adds a slot. Its frames must be free; its host addresses may be shared, and need not be mapped yet.
    pub fn create(&mut self, slot: Slot) -> Result<(), SlotError> {
        let Slot { id, gfns, hva, .. } = slot;
        if gfns.is_empty() {
            return Err(SlotError::Empty(id));
        }
        if gfns.end.0 > self.frames {
            return Err(SlotError::OutOfReach(id));
        }
        if hva.offset() != 0 || (gfns.len() << PAGE_SHIFT).checked_add(hva.0).is_none() {
            return Err(SlotError::BadHva(id));
        }
        if self.by_id.view().get(id.0).is_some() {
            return Err(SlotError::Exists(id));
        }
        if let Some((_, below)) = self.by_gfn.view().floor(gfns.end.0 - 1)
            && below.gfns.overlaps(&gfns)
        {
            return Err(SlotError::Overlaps(id, below.id));
        }
        if self.len >= self.limit {
            return Err(SlotError::TooMany(self.limit));
        }
        self.reserve()?;
        self.by_gfn.insert(gfns.start.0, slot, ())?;
        self.by_hva.insert((hva.0, id.0), gfns.start.0, slot.hvas().end.0)?;
        self.by_id.insert(id.0, gfns.start.0, ())?;
        self.len += 1;
        self.changed = self.changed.hull(&gfns);
        Ok(())
    }

    /// Removes a slot and returns it. What it mapped is gone before the transaction is over.
    pub fn delete(&mut self, id: SlotId) -> Result<Slot, SlotError> {
        let start = self.by_id.view().get(id.0).ok_or(SlotError::Missing(id))?;
        let slot = self.by_gfn.view().get(start).ok_or(SlotError::Missing(id))?;
        self.reserve()?;
        self.by_gfn.remove(start)?;
        self.by_hva.remove((slot.hva.0, id.0))?;
        self.by_id.remove(id.0)?;
        self.len -= 1;
        self.changed = self.changed.hull(&slot.gfns);
        self.deleted.push(slot.gfns);
        Ok(slot)
    }

    /// The edited copies, as the next set.
    fn finish(self) -> (Set, RetiredNodes) {
        let (by_gfn, gfn_retired) = self.by_gfn.publish();
        let (by_hva, hva_retired) = self.by_hva.publish();
        let (by_id, id_retired) = self.by_id.publish();
        (Set { by_gfn, by_hva, by_id }, (gfn_retired, hva_retired, id_retired))
    }

    /// Makes the next operation succeed on all three trees, or on none.
    fn reserve(&mut self) -> Result<(), SlotError> {
        self.by_gfn.reserve()?;
        self.by_hva.reserve()?;
        self.by_id.reserve()?;
        Ok(())
    }
}
