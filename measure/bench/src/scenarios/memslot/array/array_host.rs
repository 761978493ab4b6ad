//! The host under the engine: one more translation, through the array.

#[cfg(test)]
#[path = "array_tests.rs"]
mod array_tests;

use super::{Array, IDS, Record};
use crate::scenarios::memslot::slot_design::{Design, Machine};
use crate::scenarios::prelude::*;
use crate::world::Ordering::AcqRel;
use crate::world::{AtomicPtr, AtomicU64, Mutex, MutexGuard, fence};
use std::fmt;

/// Guest frames that the pass-through slot covers; slots lie below.
const FRAMES: u64 = (1 << 31) - 1;

/// The host under the engine: one more translation, through the array.
#[derive(Debug)]
pub struct Adapter {
    memory: SimHost,
    slots: Published,
}

/// Why an operation is refused; nothing has changed.
pub type Refused = &'static str;
/// The id is past the index, or the frames are past the last.
pub const LIMIT: Refused = "the array's slots end before this one";
/// There is a slot of this id.
pub const EXISTS: Refused = "the array has a slot of this id";
/// There is none.
pub const MISSING: Refused = "the array has no slot of this id";
/// A frame belongs to another slot.
pub const OVERLAPS: Refused = "the array has a slot there";

impl Array {
    /// Whether `slot` can be put in, given that the one of its own id may be in its way.
    fn check_place(&self, slot: &Slot) -> Result<(), Refused> {
        if slot.id.0 >= IDS || slot.gfns.end.0 > FRAMES || slot.gfns.is_empty() {
            return Err(LIMIT);
        }
        let mut others = self.overlapping(slot.gfns).filter(|record| record.slot().id != slot.id);
        if others.next().is_some() { Err(OVERLAPS) } else { Ok(()) }
    }

    /// Whether `slot` can be created.
    pub fn check_new(&self, slot: &Slot) -> Result<(), Refused> {
        self.check_place(slot)?;
        if self.place_of(slot.id).is_some() { Err(EXISTS) } else { Ok(()) }
    }

    /// Where slot `id` is, and what it will be at `gfn`.
    pub fn check_move(&self, id: SlotId, gfn: Gfn) -> Result<(usize, Record), Refused> {
        let place = self.place_of(id).ok_or(MISSING)?;
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

    fn prepare(vm: &Machine<Self>, idle: &mut Idle) -> Result<()> {
        let all = Slot::new(SlotId(0), Gfn(0), FRAMES, Hva(0));
        vm.memory().commit(idle, |tx| tx.create(all)).map_err(|error| error.to_string())
    }

    fn populate(vm: &Machine<Self>, _: &mut Idle, slots: impl Iterator<Item = Slot>) -> Result<()> {
        let slots = slots.map(|slot| Record::new(&slot));
        vm.host().slots.writer().publish(|next, now| next.fill(now, slots));
        Ok(())
    }

    fn create(vm: &Machine<Self>, _: &mut Idle, slot: Slot) -> Result<()> {
        let mut writer = vm.host().slots.writer();
        writer.current().check_new(&slot)?;
        writer.publish(|next, now| next.copy(now, None, Some(Record::new(&slot))));
        Ok(())
    }

    fn move_to(vm: &Machine<Self>, idle: &mut Idle, id: SlotId, gfn: Gfn) -> Result<()> {
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

// One pointer to the array that counts, and the wait for readers of the one before.
//
// A reader says that it is inside, by a store and a fence; the writer moves the pointer, and looks. The fence costs a
// fault less than can be measured here. Without it the writer would have to interrupt every CPU (membarrier), and
// changes of a small array would take five times as long: that would flatter slat, which mostly does with one look
// as well.
//
// There is one reader, since the bench's VM has one vCPU. The old array is the next copy's memory, so nothing is
// allocated once the array has its size.

/// A word alone on its cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Alone(AtomicU64);

/// See the module's header.
pub struct Published {
    array: AtomicPtr<Array>,
    /// Odd while the reader is inside.
    reader: Alone,
    /// Memory for the next copy, held by the writer.
    spare: Mutex<Option<Box<Array>>>,
}

/// The only writer.
pub struct Writer<'p> {
    published: &'p Published,
    spare: MutexGuard<'p, Option<Box<Array>>>,
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").finish_non_exhaustive()
    }
}

impl Default for Published {
    fn default() -> Self {
        Self {
            array: AtomicPtr::new(Box::into_raw(Box::default())),
            reader: Alone::default(),
            spare: Mutex::default(),
        }
    }
}

impl Published {
    /// Calls `look` with the array that counts; it stays until `look` returns.
    ///
    /// # Safety
    /// One thread at a time, and not from inside `look`.
    #[inline(always)]
    pub unsafe fn read<R>(&self, look: impl FnOnce(&Array) -> R) -> R {
        let before = self.reader.0.load(Relaxed);
        self.reader.0.store(before + 1, Relaxed);
        // ORDER(array): the store before every load of the array; pairs with the fence in `wait`: either the writer
        // sees the reader inside, or the reader sees the new array.
        fence(SeqCst);
        // SAFETY: the pointer is to a live array, and `publish` waits before its memory is used again.
        let found = look(unsafe { &*self.array.load(Acquire) });
        // ORDER(array-end): every load before this store; pairs with the Acquire in `wait`.
        self.reader.0.store(before + 2, Release);
        found
    }

    /// The writer. Waits while there is one.
    pub fn writer(&self) -> Writer<'_> {
        Writer { published: self, spare: self.spare.lock() }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw`; with `&mut self` there is no reader.
        drop(unsafe { Box::from_raw(self.array.load(Relaxed)) });
    }
}

impl Writer<'_> {
    /// The array that counts.
    #[inline(always)]
    pub fn current(&self) -> &Array {
        // SAFETY: only the writer replaces it, and that takes `&mut self`.
        unsafe { &*self.published.array.load(Relaxed) }
    }

    /// Makes the next array out of the current one, publishes it, and waits until no thread reads the old one.
    pub fn publish(&mut self, make: impl FnOnce(&mut Array, &Array)) {
        let old = self.replace(make);
        self.wait();
        // SAFETY: from `Box::into_raw`, and no thread reads it any more.
        *self.spare = Some(unsafe { Box::from_raw(old) });
    }

    /// Publishes the next array, and returns the old one, which may be read for a while.
    fn replace(&mut self, make: impl FnOnce(&mut Array, &Array)) -> *mut Array {
        let mut next = self.spare.take().unwrap_or_default();
        make(&mut next, self.current());
        // ORDER(array): AcqRel: the copy before the pointer; pairs with the load in `read`.
        self.published.array.swap(Box::into_raw(next), AcqRel)
    }

    /// Waits until the reader has left, if it was inside.
    fn wait(&self) {
        let Alone(reader) = &self.published.reader;
        // ORDER(array): the pointer before the look at the reader; pairs with the fence in `read`.
        fence(SeqCst);
        // ORDER(array-end): Acquire: the reader's last look is over before the memory is written again.
        let then = reader.load(Acquire);
        while then % 2 == 1 && reader.load(Acquire) == then {
            pause();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader stays inside while its array is replaced; then it looks for a while whether the writer, which waits for
    /// it or (the negative control) does not, is through. Returns whether it was.
    fn writer_overtakes_the_reader(waits: bool) -> bool {
        let published = Published::default();
        let (inside, through, left) =
            (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let wait_for = |flag: &dyn Fn() -> bool| {
            while !flag() {
                pause();
            }
        };
        let write = || {
            let mut writer = published.writer();
            wait_for(&|| inside.load(Acquire));
            let old = writer.replace(|_, _| ());
            if waits {
                writer.wait();
            }
            through.store(true, Release);
            wait_for(&|| left.load(Acquire));
            // SAFETY: the reader has left.
            *writer.spare = Some(unsafe { Box::from_raw(old) });
        };
        let mut overtaken = false;
        let read = || {
            let look = |array: &Array| {
                inside.store(true, Release);
                wait_for(&|| !core::ptr::eq(published.array.load(Acquire), array));
                if !waits {
                    wait_for(&|| through.load(Acquire));
                }
                let is_through = |_| {
                    pause();
                    through.load(Acquire)
                };
                (0..100).any(is_through)
            };
            // SAFETY: this is the only reader.
            overtaken = unsafe { published.read(look) };
            left.store(true, Release);
        };
        run(&Costs::SERVER, vec![Job::new("writer", write), Job::new("reader", read)]);
        overtaken
    }

    #[test]
    fn an_array_outlasts_its_reader() {
        assert!((0..3).all(|_| !writer_overtakes_the_reader(true)));
    }

    #[test]
    fn negative_control_without_the_wait_it_does_not() {
        assert!(writer_overtakes_the_reader(false));
    }
}
