//! The host under the engine: one more translation, through the array.

#[cfg(test)]
#[path = "array_tests.rs"]
mod tests;

use crate::scenarios::memslot::array::array_copies::Array;
use crate::scenarios::memslot::array::array_publish::Published;
use crate::scenarios::memslot::array::array_record::{IDS, Record};
use crate::scenarios::memslot::slot_design::{Design, Machine};
use crate::scenarios::prelude::*;

/// Guest frames that the pass-through slot covers; slots lie below.
const FRAMES: u64 = (1 << 31) - 1;

/// The host under the engine: one more translation, through the array.
#[derive(Debug)]
pub struct Adapter {
    memory: SimHost,
    slots: Published,
}

/// Why an operation is refused; nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The id is past the index, or the frames are past the last.
    Limit,
    /// There is a slot of this id.
    Exists,
    /// There is none.
    Missing,
    /// A frame belongs to another slot.
    Overlaps,
}

impl From<Refused> for String {
    fn from(refused: Refused) -> Self {
        let why = match refused {
            Refused::Limit => "the array's slots end before this one",
            Refused::Exists => "the array has a slot of this id",
            Refused::Missing => "the array has no slot of this id",
            Refused::Overlaps => "the array has a slot there",
        };
        why.to_owned()
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

impl Adapter {
    /// The state of a guest frame: nothing, a slot that is going, or a page.
    #[inline(always)]
    fn page(&self, gfn: Gfn) -> Option<Result<HostPage, Going>> {
        // SAFETY: only faults ask, the VM has one vCPU (`MOST_VCPUS`), and a vCPU is used by one thread at a time.
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
                Some(Err(Going)) => pause(),
            }
        }
    }

    fn kick(&self, vcpu: VcpuId) {
        self.memory.kick(vcpu);
    }
}

impl Design for Adapter {
    /// The array has one reader.
    const MOST_VCPUS: u32 = 1;

    fn over(memory: SimHost) -> Self {
        Self { memory, slots: Published::default() }
    }

    fn memory(&self) -> &SimHost {
        &self.memory
    }

    fn prepare(vm: &Machine<Self>, idle: &mut Idle) -> Result<(), String> {
        let all = Slot::new(SlotId(0), Gfn(0), FRAMES, Hva(0));
        vm.memory().commit(idle, |tx| tx.create(all)).map_err(|error| error.to_string())
    }

    fn populate(vm: &Machine<Self>, _: &mut Idle, slots: impl Iterator<Item = Slot>) -> Result<(), String> {
        let slots = slots.map(|slot| Record::new(&slot));
        vm.host().slots.writer().publish(|next, now| next.fill(now, slots));
        Ok(())
    }

    fn create(vm: &Machine<Self>, _: &mut Idle, slot: Slot) -> Result<(), String> {
        let mut writer = vm.host().slots.writer();
        writer.current().check_new(&slot)?;
        writer.publish(|next, now| next.copy(now, None, Some(Record::new(&slot))));
        Ok(())
    }

    fn move_to(vm: &Machine<Self>, idle: &mut Idle, id: SlotId, gfn: Gfn) -> Result<(), String> {
        let (place, new) = vm.host().slots.writer().current().check_move(id, gfn)?;
        replace(vm, idle, place, Some(new));
        Ok(())
    }

    fn get(vm: &Machine<Self>, _: &mut Idle, id: SlotId) -> Option<Slot> {
        vm.host().slots.writer().current().get(id).map(Record::slot)
    }

    fn take_away(vm: &Machine<Self>, idle: &mut Idle, hvas: Span<Hva>) {
        let writer = vm.host().slots.writer();
        let take = &mut || vm.host().memory.take_away(hvas);
        around(vm, idle, &mut writer.current().over_hvas(hvas), take);
    }
}

/// Marks the slot at `place` invalid, zaps what is mapped through it, and puts `new` in its stead.
fn replace(vm: &Machine<Adapter>, idle: &mut Idle, place: usize, new: Option<Record>) {
    let mut writer = vm.host().slots.writer();
    let old = writer.current().records()[place];
    let going = vm.memory().invalidate(old.slot().gfns, Reason::Slot);
    writer.publish(|next, now| next.copy(now, Some(place), Some(old.invalid())));
    let _going = going.apply(idle).settle();
    writer.publish(|next, now| next.copy(now, Some(place), new));
}

/// Invalidates every one of `parts`, calls `change` while all of them are open, and ends them.
fn around(
    vm: &Machine<Adapter>,
    idle: &mut Idle,
    parts: &mut impl Iterator<Item = Span<Gfn>>,
    change: &mut impl FnMut(),
) {
    let Some(gfns) = parts.next() else { return change() };
    let _invalidation = vm.memory().invalidate(gfns, Reason::Clear).apply(idle).settle();
    around(vm, idle, parts, change);
}
