//! Hints: the memslot that was found last, kept where it is asked for again.
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
//!
//! `HvaHints` are the same for notify: the slot behind a host range without a search. A primary MMU takes pages away in streams,
//! and asks for the same slot again and again. For each of sixteen stretches of host memory (64 MiB each, by address) the slot
//! found last is kept, while no two slots share host addresses: then the answer to any range inside it is frames of this slot alone.
//!
//! A hint is three words (`Remembered`), and a slot takes two beside its first frame (`Packed`).

use super::{Slot, SlotId};
use crate::addr::{Gfn, Hva, PAGE_SHIFT, PAGE_SIZE, Span};
use crate::sync::prim::{Acquire, AtomicU64, Relaxed, Release, fence};

/// The memslot found last by guest frame. See the module's header. Any number of threads may share one.
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

const HINTS: usize = 16;
const STRETCH: u32 = 26;

/// The slots found last by host address. See the module's header.
#[derive(Debug, Default)]
pub(super) struct HvaHints([HvaHint; HINTS]);

/// A slot that is alone behind its host addresses.
#[derive(Debug, Default)]
#[repr(align(64))]
struct HvaHint(Remembered);

impl HvaHints {
    /// The frames behind `hvas` in version `number`, where they are known to be one slot's and no other's; or where `search` finds
    /// so.
    #[inline]
    pub(super) fn alone_over(
        &self,
        number: u64,
        hvas: Span<Hva>,
        search: impl FnOnce() -> Option<Interval>,
    ) -> Option<Span<Gfn>> {
        let hint = &self.0[(hvas.start.0 >> STRETCH) as usize % HINTS];
        if let Some(slot) = hint.get(number).filter(|slot| slot.hvas.covers(&hvas) && !hvas.is_empty()) {
            return Some(slot.part(hvas));
        }
        let slot = search()?;
        if slot.hvas.len() > hvas.len() {
            hint.put(&slot, number);
        }
        Some(slot.part(hvas))
    }
}

impl HvaHint {
    /// What it holds, if that is of `version`.
    #[inline]
    fn get(&self, version: u64) -> Option<Interval> {
        let [start, end, gfn] = self.0.get(version)?;
        Some(Interval { hvas: Span::new(Hva(start), Hva(end)), gfn: Gfn(gfn) })
    }

    fn put(&self, slot: &Interval, version: u64) {
        self.0.put([slot.hvas.start.0, slot.hvas.end.0, slot.gfn.0], version);
    }
}

/// A slot as the hva index has it.
#[derive(Clone, Copy)]
pub(super) struct Interval {
    pub(super) hvas: Span<Hva>,
    /// Its first frame.
    pub(super) gfn: Gfn,
}

impl Interval {
    #[inline]
    pub(super) fn of((key, gfn, end): (u128, u64, u64)) -> Self {
        Self { hvas: Span::new(Hva((key >> 32) as u64), Hva(end)), gfn: Gfn(gfn) }
    }

    /// Its frames behind `hvas`, some of which lie in it.
    #[inline]
    pub(super) fn part(&self, hvas: Span<Hva>) -> Span<Gfn> {
        let frame = |bytes: u64| self.gfn + (bytes >> PAGE_SHIFT);
        let (from, to) = (hvas.start.max(self.hvas.start).0, hvas.end.min(self.hvas.end).0);
        let start = self.hvas.start.0;
        let up = if seeded!(PartRoundedDown) { 0 } else { PAGE_SIZE - 1 };
        Span::new(frame(from - start), frame(to - start + up))
    }
}

/// What was found in one version of the slots, in three words that any number of threads read and write. They are guarded by a
/// sequence number, odd while they are being written, and named by the version that they were copied from: any later one makes
/// them stale at once.
#[derive(Debug, Default)]
struct Remembered {
    sequence: AtomicU64,
    version: AtomicU64,
    words: [AtomicU64; 3],
}

impl Remembered {
    /// The words, if they are of `version`.
    #[inline]
    fn get(&self, version: u64) -> Option<[u64; 3]> {
        // ORDER(hint): Acquire before the words, fence after them; pairs with `put`: equal and even on both
        // sides means that nothing was written between.
        let before = self.sequence.load(Acquire);
        if before & 1 == 1 || self.version.load(Relaxed) != version {
            return None;
        }
        let [a, b, c] = &self.words;
        let words = [a.load(Relaxed), b.load(Relaxed), c.load(Relaxed)];
        // ORDER(hint): see above.
        if !seeded!(HintReadUnfenced) {
            fence(Acquire);
        }
        (self.sequence.load(Relaxed) == before).then_some(words)
    }

    /// Remembers `words`, found in `version`. Gives up where another thread is writing. Rare, and kept out of the
    /// fault's own code, which is slower with it inside.
    #[inline(never)]
    fn put(&self, words: [u64; 3], version: u64) {
        let before = self.sequence.load(Relaxed);
        // ORDER(hint): claims the words; Acquire keeps them below it.
        if before & 1 == 1 || self.sequence.compare_exchange(before, before + 1, Acquire, Relaxed).is_err() {
            return;
        }
        // ORDER(hint): the odd number before the words, for readers on machines that reorder stores.
        if !seeded!(HintWriteUnfenced) {
            fence(Release);
        }
        self.version.store(version, Relaxed);
        for (cell, word) in self.words.iter().zip(words) {
            cell.store(word, Relaxed);
        }
        // ORDER(hint): the words before the even number; pairs with `get`.
        self.sequence.store(before + 2, unless_seeded!(HintRelaxed, Release));
    }

    /// Names a version that there never is. Not beside a `put`.
    #[inline]
    fn forget(&self) {
        self.version.store(u64::MAX, Relaxed);
    }
}

/// A slot in two words: what the gfn index keeps beside its key, the first frame. Look-ups pay for size.
///
/// ```text
/// place   host address (page-aligned)        | low 12 bits of the number of pages
/// name    id (32 bits) | the rest of it (30 bits) | log dirty | read-only
/// ```
#[derive(Clone, Copy)]
pub(crate) struct Packed {
    place: u64,
    name: u64,
}

const LOW: u64 = PAGE_SIZE - 1;
const LOG_DIRTY: u64 = 2;
const READONLY: u64 = 1;

impl Packed {
    pub(crate) fn new(slot: &Slot) -> Self {
        let pages = slot.gfns.len();
        let flags = u64::from(slot.log_dirty) * LOG_DIRTY | u64::from(slot.readonly) * READONLY;
        Self {
            place: slot.hva.0 | pages & LOW,
            name: u64::from(slot.id.0) << 32 | pages >> PAGE_SHIFT << 2 | flags,
        }
    }

    #[inline(always)]
    pub(crate) fn slot(self, gfn: Gfn) -> Slot {
        let pages = (self.name & 0xffff_fffc) << (PAGE_SHIFT - 2) | self.place & LOW;
        Slot {
            id: SlotId((self.name >> 32) as u32),
            gfns: Span::new(gfn, gfn + pages),
            hva: Hva(self.place & !LOW),
            readonly: self.name & READONLY != 0,
            log_dirty: self.name & LOG_DIRTY != 0,
        }
    }

    /// Both words, for a copy that is kept beside a table.
    pub(crate) fn words(self) -> [u64; 2] {
        [self.place, self.name]
    }

    #[inline(always)]
    pub(crate) fn from_words([place, name]: [u64; 2]) -> Self {
        Self { place, name }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::rules::MAX_PAGES;

    #[test]
    fn a_slot_survives_packing() {
        let far = Hva(!LOW);
        for (pages, hva, id) in [(1, Hva(0), 0), (MAX_PAGES, far, u32::MAX), (0x1fff, Hva(0x7000), 77)] {
            let slot = Slot::new(SlotId(id), Gfn(0x12345), pages, hva);
            for slot in [slot, slot.readonly(), slot.log_dirty(), slot.readonly().log_dirty()] {
                assert_eq!(Packed::new(&slot).slot(slot.gfns.start), slot);
            }
        }
    }
}
