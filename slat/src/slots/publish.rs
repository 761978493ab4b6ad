//! Versions of the slots as readers see them.
//!
//! ```text
//! word        version number << 1 | in progress
//! cells       [ v32 | v33 | v18 | v19 | … ]        version n lies in cell n mod 16
//! ```
//! One store of the word publishes a version; one load of it tells a reader which set is current, its number, and
//! whether readers of the one before may still be about. So a look-up and the number that it is remembered under
//! never come from two versions. KVM has two sets and two loads, hence its rule that nothing be cached while
//! an update is in progress; here the bit is information for users ([`super::Generation`]).
//!
//! **When is somebody waited for?** What is taken away (a slot deleted, moved, its log ended) is gone for every
//! reader when the transaction returns: it ends in a grace period. A transaction that only creates takes nothing
//! from anybody: it publishes and returns, and what it left over waits until the next grace period, or until
//! the cells run out: one wait for sixteen creations. A cell is written again only after a grace period since
//! it was replaced.

use super::hva_hints::HvaHints;
use super::map::SlotMap;
use super::rules::Limits;
pub(crate) use super::version::Place;
use super::version::{Leftovers, Set, Version};
use crate::addr::{Gfn, Hva, PAGE_SHIFT, Span};
use crate::dirty::DirtyLog;
use crate::dirty::bitmap::{CHUNK, WORD};
use crate::sync::prim::{Acquire, AtomicU64, Mutex, Padded, Relaxed, Release};
use crate::sync::readside::{ReadSide, Seat, Section};
use crate::table::Version as Invalidated;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::fmt;

/// Versions that can exist at once.
const CELLS: u64 = 16;

const IN_PROGRESS: u64 = 1;

/// The memslots of one address space, with their past as far as readers may hold it.
pub(crate) struct SlotSets {
    word: Padded<AtomicU64>,
    cells: [UnsafeCell<(Set, Name)>; CELLS as usize],
    /// The number of the invalidation under which the last version was published.
    changed: AtomicU64,
    hva_hints: HvaHints,
    /// Ids are below this.
    pub(crate) ids: u32,
    /// The transaction mutex: outermost of our own locks.
    pub(super) writer: Mutex<Writer>,
}

/// What whoever holds the transaction mutex has.
pub(super) struct Writer {
    pub(super) map: SlotMap,
    /// No reader holds a version older than this one.
    oldest: u64,
    /// What versions since then left over: fewer than there are cells, so that it never grows.
    leftovers: Vec<Leftovers>,
}

// SAFETY: a published cell is only read; the others are written under `writer`, and only after a grace period
// since they were replaced.
unsafe impl Sync for SlotSets {}

impl fmt::Debug for SlotSets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotSets").finish_non_exhaustive()
    }
}

/// A published version of one address space, among all of the process. Numbers are a space's own: hints, which their users
/// may take from one VM to another, remember names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Name(pub(super) u64);

impl Name {
    fn next() -> Self {
        /// Not of a VM, and nothing is ordered by it: `core`'s in every build.
        static LAST: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
        Self(LAST.fetch_add(1, Relaxed) + 1)
    }
}

/// The published version, held still by a section of the read side.
pub(crate) struct Reading<'g> {
    pub(crate) version: Version<'g>,
    pub(crate) number: u64,
    pub(crate) name: Name,
    _section: Section<'g>,
}

/// What is left of a host range whose frames are edited, slot by slot.
#[derive(Debug)]
pub(crate) struct Behind {
    hvas: Span<Hva>,
    /// The slots before are done with.
    from: Place,
    /// In the slot at that place: what lies before is.
    inside: Hva,
}

/// The frames of one slot in such a range.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) gfns: Span<Gfn>,
    /// No other slot has any of the range.
    alone: bool,
    place: Place,
    /// The host address of the first frame.
    hva: Hva,
}

impl Part {
    /// The host page behind one of its frames.
    pub(crate) fn hva_of(&self, gfn: Gfn) -> Hva {
        let hva = self.hva + ((gfn.0 - self.gfns.start.0) << PAGE_SHIFT);
        Hva(hva.0 - hva.offset())
    }
}

impl Behind {
    pub(crate) fn new(hvas: Span<Hva>) -> Self {
        Self { hvas, from: Place::FIRST, inside: hvas.start }
    }

    /// Whether a slot that was alone over the range has had all of it. Where slots share the range, only a search tells.
    pub(crate) fn is_nothing(&self) -> bool {
        self.hvas.is_empty()
    }

    /// What is left when `part` is done with up to the frame `goal`.
    pub(crate) fn after(self, part: &Part, goal: Gfn) -> Self {
        let inside = part.hva + ((goal.0 - part.gfns.start.0) << PAGE_SHIFT);
        if part.alone {
            Self::new(Span::new(inside.min(self.hvas.end), self.hvas.end))
        } else if goal < part.gfns.end {
            Self { from: part.place, inside, ..self }
        } else {
            // The next place may be that of the next slot: nothing of it is done with.
            Self { from: part.place.next(), inside: self.hvas.start, ..self }
        }
    }
}

impl SlotSets {
    pub(crate) fn new(limits: Limits, dirty: DirtyLog) -> Self {
        let map = SlotMap::with_logs(limits, dirty.initially_set);
        let set = (map.set(), Name::next());
        Self {
            word: Padded::default(),
            cells: core::array::from_fn(|_| UnsafeCell::new(set)),
            changed: AtomicU64::new(0),
            ids: limits.ids,
            hva_hints: HvaHints::default(),
            writer: Mutex::new(Writer { map, oldest: 0, leftovers: Vec::with_capacity(CELLS as usize) }),
        }
    }

    /// The number of the published version.
    #[inline(always)]
    pub(crate) fn number(&self) -> u64 {
        // ORDER(publish): Acquire: a fault's second look at the epoch stays below this load.
        self.word.0.load(unless_seeded!(NumberRelaxed, Acquire)) >> 1
    }

    /// The same, and whether readers of an older one may still be about.
    pub(super) fn progress(&self) -> (u64, bool) {
        let word = self.word.0.load(Acquire);
        (word >> 1, word & IN_PROGRESS != 0)
    }

    /// The published version, on a seat that this thread holds.
    #[inline(always)]
    pub(crate) fn read<'g>(&'g self, reads: &ReadSide, seat: &'g Seat) -> Reading<'g> {
        let section = reads.enter(seat);
        // ORDER(publish): Acquire pairs with the Release in `publish`: the cell and the nodes are written before
        // they are seen. It also keeps a fault's second look at the epoch below this load.
        let number = self.word.0.load(Acquire) >> 1;
        // SAFETY: written before it was published, and not again until a grace period after it was replaced:
        // this section began before. The same holds for its nodes.
        let (version, name) = unsafe {
            let (set, name) = &*self.cells[(number % CELLS) as usize].get();
            (set.read(), *name)
        };
        Reading { version, number, name, _section: section }
    }

    /// The next slot's frames, if there are any left. They are good for the section in which they were looked up: in a
    /// later version they may stand for other host pages, and those are not the caller's to edit. Slots that come
    /// in between need not be seen: faults there wait for the invalidation to end.
    pub(crate) fn behind(&self, reads: &ReadSide, seat: &Seat, left: &Behind) -> Option<Part> {
        self.behind_in(&self.read(reads, seat), left)
    }

    fn behind_in(&self, reading: &Reading<'_>, left: &Behind) -> Option<Part> {
        let (version, hvas) = (reading.version, left.hvas);
        if left.from == Place::FIRST
            && let Some(gfns) = self.hva_hints.alone_over((version, reading.number), hvas)
        {
            return Some(Part { gfns, alone: true, place: Place::FIRST, hva: hvas.start });
        }
        let (place, slot) = version.search_hvas(hvas, left.from).next()?;
        // The rest of the slot that the walk had come into.
        let from = if place == left.from { left.inside } else { hvas.start };
        let hvas = Span::new(from.max(slot.hvas.start), hvas.end);
        Some(Part { gfns: slot.part(hvas), alone: false, place, hva: hvas.start })
    }

    /// Logs writes to `gfns`, where slots log, in one section: those of one leaf. After each has been made possible, or been
    /// made: a thread that takes the mark sees that, and takes the possibility away.
    #[inline]
    pub(crate) fn log_writes(&self, reads: &ReadSide, seat: &Seat, gfns: Span<Gfn>) {
        let reading = self.read(reads, seat);
        if reading.version.logs_any() {
            log_writes_in(reading.version, gfns);
        }
    }

    /// Logs writes to `gfns`, where slots log, after they have been made: any number of pages, section by section.
    pub(crate) fn mark_dirty(&self, reads: &ReadSide, seat: &Seat, gfns: Span<Gfn>) {
        let mut left = gfns;
        while let Some(goal) = self.mark_part(reads, seat, left) {
            left.start = goal;
        }
    }

    /// One section of it. Where to go on, if there may be more.
    fn mark_part(&self, reads: &ReadSide, seat: &Seat, left: Span<Gfn>) -> Option<Gfn> {
        let reading = self.read(reads, seat);
        if !reading.version.logs_any() {
            return None;
        }
        let mut room = room();
        for slot in reading.version.range(left) {
            let mut part = slot.gfns.clamp(&left);
            if slot.log_dirty {
                part.end = part.end.min(part.start + room * WORD);
                log_writes_in(reading.version, part);
                room = room.saturating_sub(part.len().div_ceil(WORD));
            }
            room = room.saturating_sub(1);
            if room == 0 {
                return Some(part.end);
            }
        }
        None
    }

    /// [`mark_dirty`](Self::mark_dirty) by host addresses.
    pub(crate) fn mark_dirty_behind(&self, reads: &ReadSide, seat: &Seat, hvas: Span<Hva>) {
        let mut left = Some(Behind::new(hvas));
        while let Some(now) = left {
            left = self.mark_part_behind(reads, seat, now);
        }
    }

    /// One section of it: each part is marked in the version in which it was looked up.
    fn mark_part_behind(&self, reads: &ReadSide, seat: &Seat, mut left: Behind) -> Option<Behind> {
        let reading = self.read(reads, seat);
        if !reading.version.logs_any() {
            return None;
        }
        let mut room = room();
        while !left.is_nothing()
            && let Some(part) = self.behind_in(&reading, &left)
        {
            if room == 0 {
                return Some(left);
            }
            let goal = part.gfns.end.min(part.gfns.start + room * WORD);
            let marked = Span::new(part.gfns.start, goal);
            log_writes_in(reading.version, marked);
            room = room.saturating_sub(marked.len().div_ceil(WORD) + 1);
            left = left.after(&part, goal);
        }
        None
    }

    /// Whether nothing has been published since invalidation `version`: what was said of the slots as of that number is still
    /// true. Asked after the epoch was read.
    #[inline]
    pub(crate) fn unchanged_since(&self, version: Invalidated) -> bool {
        version >= self.published_under()
    }

    /// The invalidation under which the slots were published, or are about to be.
    pub(crate) fn published_under(&self) -> Invalidated {
        // ORDER(stamp): Acquire, below the epoch: a fault that begins after a transaction sees its number.
        Invalidated(self.changed.load(Acquire))
    }

    /// Publishes `set` under the next number, inside invalidation `under`; `in_progress` until [`Writer::wait`].
    ///
    /// # Safety
    /// Under `writer`, which has a free cell ([`Writer::make_room`]).
    pub(super) unsafe fn publish(&self, set: Set, under: Invalidated, in_progress: bool) {
        // Before the version: a stale answer is refused a moment early, and looked up.
        // ORDER(stamp): Release; pairs with `unchanged_since`.
        self.changed.store(under.0, Release);
        let number = self.number() + 1;
        // SAFETY: the cell of a version that nobody reads any more, and one writer.
        unsafe { *self.cells[(number % CELLS) as usize].get() = (set, Name::next()) };
        // ORDER(publish): Release; see `read`.
        self.word.0.store(number << 1 | u64::from(in_progress), unless_seeded!(PublishRelaxed, Release));
    }
}

/// Words that are marked in one section, where a slot that is looked at counts as one: some ten microseconds.
fn room() -> u64 {
    if seeded!(MarkedAtOnce) { 1 << 40 } else { CHUNK as u64 }
}

#[cold]
fn log_writes_in(version: Version<'_>, gfns: Span<Gfn>) {
    if gfns.len() == 1 {
        let slot = version.find(gfns.start).filter(|slot| slot.log_dirty);
        if let Some((slot, log)) = slot.and_then(|slot| Some((slot, version.log(slot.id)?))) {
            log.mark(gfns.start.0 - slot.gfns.start.0);
        }
        return;
    }
    for slot in version.range(gfns).filter(|slot| slot.log_dirty) {
        if let Some(log) = version.log(slot.id) {
            let (first, part) = (slot.gfns.start.0, slot.gfns.clamp(&gfns));
            log.mark_pages(part.start.0 - first..part.end.0 - first);
        }
    }
}

impl Writer {
    /// Keeps what the version that was just replaced left over, until readers have been waited for.
    pub(super) fn keep(&mut self, leftovers: Leftovers) {
        self.leftovers.push(leftovers);
    }

    /// Makes the next publication possible: a free cell. Waits for readers where there is none.
    pub(super) fn make_room(&mut self, sets: &SlotSets, reads: &ReadSide) {
        if sets.number() + 1 - self.oldest >= CELLS && !seeded!(CellReusedEarly) {
            self.wait(sets, reads);
        }
    }

    /// Waits until nobody reads any version but the published one, and takes back what older ones left over.
    /// The thread must be in no section.
    pub(super) fn wait(&mut self, sets: &SlotSets, reads: &ReadSide) {
        if !seeded!(SlotsFreedEarly) {
            reads.synchronize();
        }
        let number = sets.number();
        self.oldest = number;
        for leftovers in self.leftovers.drain(..) {
            // SAFETY: left over before the grace period that just ended.
            unsafe { self.map.reclaim(leftovers) };
        }
        // ORDER(publish): Release again: readers take the version from this store from now on.
        sets.word.0.store(number << 1, Release);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        for leftovers in self.leftovers.drain(..) {
            // SAFETY: the VM is dropped: there is no reader.
            unsafe { self.map.reclaim(leftovers) };
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests;
