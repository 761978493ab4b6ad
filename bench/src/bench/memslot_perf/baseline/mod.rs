//! The design before the series: one array of all slots, copied whole for every change.
//!
//! It is the array that the series itself describes, made with the care that slat's own trees were made with:
//!
//! | what | how | cost |
//! |---|---|---|
//! | gfn → slot | the last one that was found, else binary search in the array | O(log n) |
//! | hva range → gfn ranges | a look at every slot | O(n) |
//! | id → slot | an index of every id there can be | O(1), 64 KiB to copy |
//! | create, change flags | a copy of everything, published by one pointer | O(n) |
//! | delete, move | the same twice: first the slot is marked invalid, so that nothing new is mapped through it, then it goes | O(n) |
//!
//! After each publication the writer waits for readers, as it had to: the old copy goes. Waiting and reading are
//! as cheap as they can be made together (`publish.rs`), far cheaper than the kernel's (`--kvm` shows requests with one
//! wait and with two). Records are as large as the kernel's (`record.rs`), copies reuse their memory (`array.rs`).
//!
//! **It runs on slat's own engine, so that nothing else differs.** Its VM has a single slat memslot that passes every
//! guest frame through: the host address that the engine asks for is the guest's own. The host here translates
//! it through the array to the real one, inside the array's read section, and looks there in the same memory as
//! the other entrant ([`Adapter`]). Where the host takes pages away, the scan finds the slots, and each becomes an
//! invalidation of guest frames; a slot that goes is one as well, over its own frames only (the kernel of that time
//! emptied the whole table). Tables, faults, flushes and vCPUs are the same code, and the engine's own slot
//! look-up, which has one slot to find, takes its shortest way.

mod array;
mod publish;
mod record;
#[cfg(test)]
mod tests;

pub use array::Array;
pub use record::Record;

use super::design::{Design, Machine, Memslots};
use super::memory::Memory;
use publish::{Published, Writer};
use slat::{Access, Gfn, Host, HostError, HostPage, Hva, Idle, Slot, SlotId, Span, TableMemory, Vm, Why};
use slat_cli::error::Error;
use std::sync::Arc;
use std::thread;

/// Ids are below this: as many as the kernel lets users have on x86.
pub const IDS: u32 = 32_764;

/// Guest frames that the pass-through slot covers; slots lie below.
const FRAMES: u64 = (1 << 31) - 1;

/// See the module's header.
pub struct Before;

/// The host under the engine: one more translation, through the array.
#[derive(Debug)]
pub struct Adapter {
    memory: Arc<Memory>,
    slots: Published,
}

/// The slots of a VM, in the hands of their one writer.
pub struct Slots<'vm> {
    vm: &'vm Machine<Before>,
    writer: Writer<'vm>,
}

/// Why an operation is refused; nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The id is past the index, or the frames are past the last.
    #[error("the array's slots end before this one")]
    Limit,
    /// There is a slot of this id.
    #[error("the array has a slot of this id")]
    Exists,
    /// There is none.
    #[error("the array has no slot of this id")]
    Missing,
    /// A frame belongs to another slot.
    #[error("the array has a slot there")]
    Overlaps,
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Self::Machine(refused.to_string())
    }
}

impl Array {
    /// Whether `slot` can be put in, given that the one of its own id may be in its way.
    fn check_place(&self, slot: &Slot) -> Result<(), Refused> {
        if slot.id.0 >= IDS || slot.gfns.end.0 > FRAMES || slot.gfns.is_empty() {
            return Err(Refused::Limit);
        }
        let mut others = self.overlapping(slot.gfns).filter(|record| record.slot().id != slot.id);
        if others.next().is_some() { Err(Refused::Overlaps) } else { Ok(()) }
    }

    /// Whether `slot` can be created.
    pub fn check_new(&self, slot: &Slot) -> Result<(), Refused> {
        self.check_place(slot)?;
        if self.place_of(slot.id).is_some() { Err(Refused::Exists) } else { Ok(()) }
    }

    /// Where slot `id` is, and what it will be at `gfn`.
    pub fn check_move(&self, id: SlotId, gfn: Gfn) -> Result<(usize, Record), Refused> {
        let place = self.place_of(id).ok_or(Refused::Missing)?;
        let new = self.records()[place].at(gfn);
        self.check_place(&new.slot())?;
        Ok((place, new))
    }
}

// SAFETY: the trait's defaults keep its contract.
unsafe impl TableMemory for Adapter {}

impl Adapter {
    /// What is behind a guest frame: nothing, a slot that is going, or a page.
    #[inline(always)]
    fn page(&self, gfn: Gfn) -> Option<Result<HostPage, Going>> {
        // SAFETY: only faults ask, the VM has one vCPU, and a vCPU is used by one thread at a time.
        unsafe {
            self.slots.read(|array| {
                let record = array.find(gfn)?;
                if record.is_invalid() {
                    return Some(Err(Going));
                }
                self.memory.page(record.hva_of(gfn)).map(Ok)
            })
        }
    }
}

/// The slot is invalid: try again when it has gone.
struct Going;

impl Host for Adapter {
    #[inline]
    fn lookup(&self, passed: Hva, _access: Access) -> Option<HostPage> {
        self.page(Gfn(passed.0 >> slat::PAGE_SHIFT))?.ok()
    }

    fn resolve(&self, _idle: &mut Idle, passed: Hva, _access: Access) -> Result<HostPage, HostError> {
        loop {
            match self.page(Gfn(passed.0 >> slat::PAGE_SHIFT)) {
                None => return Err(HostError::Fault),
                Some(Ok(page)) => return Ok(page),
                Some(Err(Going)) => thread::yield_now(),
            }
        }
    }
}

impl Design for Before {
    type Host = Adapter;
    type Slots<'vm> = Slots<'vm>;

    fn host(memory: &Arc<Memory>) -> Adapter {
        Adapter { memory: memory.clone(), slots: Published::default() }
    }

    fn slots<'vm>(vm: &'vm Machine<Self>, idle: &mut Idle) -> Result<Slots<'vm>, Error> {
        let all = Slot::new(SlotId(0), Gfn(0), FRAMES, Hva(0));
        vm.slots().commit(idle, |tx| tx.create(all))?;
        Ok(Slots { vm, writer: vm.host().slots.writer() })
    }
}

impl Slots<'_> {
    /// Removes a slot.
    #[cfg(test)]
    fn delete(&mut self, idle: &mut Idle, id: SlotId) -> Result<(), Refused> {
        let place = self.writer.current().place_of(id).ok_or(Refused::Missing)?;
        self.replace(idle, place, None);
        Ok(())
    }

    /// Marks the slot at `place` invalid, zaps what is mapped through it, and puts `new` in its stead.
    fn replace(&mut self, idle: &mut Idle, place: usize, new: Option<Record>) {
        let old = self.writer.current().records()[place];
        let mut going = self.vm.invalidate_gfns(old.slot().gfns, Why::Slot);
        self.writer.publish(|next, now| next.copy(now, Some(place), Some(old.invalid())));
        going.apply(idle).settle();
        self.writer.publish(|next, now| next.copy(now, Some(place), new));
    }
}

impl Memslots for Slots<'_> {
    fn populate(&mut self, _idle: &mut Idle, slots: impl Iterator<Item = Slot>) -> Result<(), Error> {
        self.writer.publish(|next, now| next.fill(now, slots.map(|slot| Record::new(&slot))));
        Ok(())
    }

    fn create(&mut self, _idle: &mut Idle, slot: Slot) -> Result<(), Error> {
        self.writer.current().check_new(&slot)?;
        self.writer.publish(|next, now| next.copy(now, None, Some(Record::new(&slot))));
        Ok(())
    }

    fn move_to(&mut self, idle: &mut Idle, id: SlotId, gfn: Gfn) -> Result<(), Error> {
        let (place, new) = self.writer.current().check_move(id, gfn)?;
        self.replace(idle, place, Some(new));
        Ok(())
    }

    fn get(&mut self, _idle: &mut Idle, id: SlotId) -> Option<Slot> {
        self.writer.current().get(id).map(Record::slot)
    }

    fn take_away(&mut self, idle: &mut Idle, hvas: Span<Hva>) {
        let memory = &self.vm.host().memory;
        around(self.vm, idle, &mut self.writer.current().over_hvas(hvas), &mut || memory.take_away(hvas));
    }
}

/// Invalidates every one of `parts`, calls `change` while all of them are open, and ends them.
fn around(
    vm: &Vm<slat::table::formats::Npt4, Adapter>,
    idle: &mut Idle,
    parts: &mut impl Iterator<Item = Span<Gfn>>,
    change: &mut impl FnMut(),
) {
    let Some(gfns) = parts.next() else { return change() };
    let mut invalidation = vm.invalidate_gfns(gfns, Why::Clear);
    invalidation.apply(idle).settle();
    around(vm, idle, parts, change);
}
