//! Marking: pages of slots that log become dirty.
//!
//! **A store is marked in the log that was known before the store was allowed.** A transaction T may publish the next
//! version of the slots between a fault's look-up and its mark; T then waits for the fault's section. If T moves the
//! slot, the frame has no slot any more in that version, or another slot, while the page is still in the log that moved.
//! So each thread that allows or makes a store reads a version first, then stores or gives the permission,
//! and marks in that version: [`KnownLogs`], the only type that marks, borrows it.
//!
//! | T, after the version was read | why the mark is right |
//! |---|---|
//! | moves the slot | the log is the same; T zaps the leaf before it publishes, so a permission that was given is older |
//! | cuts the slot | each piece has a new log with all pages marked, whose first harvest waits for this section |
//! | deletes it, or ends the log | nothing reads the log again; its memory is kept until this section ends |
//! | the same, and begins another log under the same id | that log begins when T returns: T arms it after this section |
//! | begins the log | there is no mark, and T arms the leaf after this section |
//!
//! **D bits outlive their leaves**: an invalidation marks a page with D in the bitmap before it zaps the leaf. A
//! harvest that finds no leaf reads the bitmap next ([`super::log`]), so the bit must already be set. If the edit then
//! fails because the leaf has changed, the page was written anyway. If a whole harvest takes the mark in between, the
//! edit may succeed although the leaf has been written once more: a harvest therefore waits for such edits
//! ([`super::log`]).
//!
//! The invalidation looks the slot up between reading the leaf and replacing it, in one section. If the edit succeeds,
//! the leaf was there at the look-up, and was this slot's ([`super::log`] says why).
//!
//! **Tables** are unhooked with their leaves, which no harvest reads again. While any slot logs by D bits, an
//! invalidation first zaps a table leaf by leaf, and unhooks it in a second pass. Faults have waited since the begin,
//! so no leaf can have come back ([`Invalidation`](crate::Invalidation)).

use crate::dirty_log::ring::{Pushed, Ring};
use crate::slots::SlotsVersion;
use crate::slots::behind::Behind;
use crate::slots::bitmap::{CHUNK, WORD};
use crate::slots::publish::SlotSets;
use crate::sync::{Mode, ReadSide, Seat};
use crate::{Format, Gfn, Host, Hva, Level, PAGE_SIZE, Slot, SpaceId, Span, Walk, Word};

/// The logs in a version of the memslots, which was read before stores are allowed or made.
#[derive(Clone, Copy)]
pub(crate) struct KnownLogs<'v>(SlotsVersion<'v>);

/// The ring of the vCPU that stores, if there is one, and its address space. It gets the stores to one page.
type ToRing<'r> = (Option<&'r Ring>, SpaceId);

impl<'v> KnownLogs<'v> {
    #[inline(always)]
    pub(crate) fn of(version: SlotsVersion<'v>) -> Self {
        Self(version)
    }

    /// Marks stores to `gfns`. Call it after the write permission was given, or the store made: a harvest that takes the
    /// mark sees the permission, and withdraws it.
    #[inline(always)]
    pub(crate) fn mark(self, gfns: Span<Gfn>) {
        self.mark_to((None, SpaceId(0)), gfns);
    }

    /// Allows stores to `gfns`, the frames of one leaf, by `allow`: a CAS that gives the write permission, and says
    /// whether it did. Then marks them.
    #[inline(always)]
    pub(crate) fn allow(self, ring: ToRing<'_>, gfns: Span<Gfn>, allow: impl FnOnce() -> bool) -> bool {
        let allowed = allow();
        if allowed {
            self.mark_to(ring, gfns);
        }
        allowed
    }

    #[inline(always)]
    fn mark_to(self, ring: ToRing<'_>, gfns: Span<Gfn>) {
        if self.0.logs_any() {
            self.mark_each(ring, gfns);
        }
    }

    #[cold]
    fn mark_each(self, ring: ToRing<'_>, gfns: Span<Gfn>) {
        if gfns.len() == 1 {
            if let Some(slot) = self.0.find(gfns.start) {
                self.mark_in(ring, &slot, gfns);
            }
            return;
        }
        // No leaf is large where writes are logged; but the log may have begun after the leaf was read.
        for slot in self.0.range(gfns) {
            self.mark_in(ring, &slot, slot.gfns.clamp(&gfns));
        }
    }

    /// Marks `gfns`, which are in `slot`, if it logs.
    fn mark_in(self, (ring, space): ToRing<'_>, slot: &Slot, gfns: Span<Gfn>) {
        let Some(log) = self.0.log(slot.id).filter(|_| slot.log_dirty) else { return };
        let (first, end) = (gfns.start.0 - slot.gfns.start.0, gfns.end.0 - slot.gfns.start.0);
        if gfns.len() > 1 {
            log.mark_pages(first..end);
        } else if !ring.is_some_and(|ring| ring.push(Pushed::new(space, slot.id, log, first))) {
            log.mark(first);
        }
    }
}

impl SlotSets {
    /// Logs writes to any number of frames where slots log, after the writes, section by section.
    pub(crate) fn mark_dirty(&self, reads: &ReadSide, seat: &Seat, gfns: Span<Gfn>) {
        let mut left = gfns;
        while let Some(goal) = self.mark_part(reads, seat, left) {
            left.start = goal;
        }
    }

    /// Marks in one section. Returns where to continue, if there may be more.
    fn mark_part(&self, reads: &ReadSide, seat: &Seat, left: Span<Gfn>) -> Option<Gfn> {
        let reading = self.read(reads, seat);
        let version = reading.version();
        if !version.logs_any() {
            return None;
        }
        let mut room = ROOM;
        for slot in version.range(left) {
            let mut part = slot.gfns.clamp(&left);
            if slot.log_dirty {
                part.end = part.end.min(part.start + room * WORD);
                KnownLogs::of(version).mark(part);
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

    /// Marks the page that `gfn` had when its memslot had `place` as the host address there, after a write of which no
    /// section knows. If that memslot is at the frame, its log is the one of now: it may have begun, or been cut, since.
    /// Otherwise the memslot has moved, and is found by the host address, which moves with it.
    pub(crate) fn mark_dirty_at(&self, reads: &ReadSide, seat: &Seat, (gfn, place): (Gfn, Hva)) {
        let reading = self.read(reads, seat);
        let version = reading.version();
        let whole = version.find(gfn).and_then(|part| version.get(part.id));
        if whole.is_some_and(|slot| slot.hva_of(gfn) == place) {
            KnownLogs::of(version).mark(Span::sized(gfn, 1));
            return;
        }
        drop(reading);
        self.mark_dirty_behind(reads, seat, Span::sized(place, PAGE_SIZE));
    }

    /// Marks in one section. Each part is marked in the version in which it was looked up.
    fn mark_part_behind(&self, reads: &ReadSide, seat: &Seat, mut left: Behind) -> Option<Behind> {
        let reading = self.read(reads, seat);
        let version = reading.version();
        if !version.logs_any() {
            return None;
        }
        let mut room = ROOM;
        while !left.is_nothing()
            && let Some(part) = self.behind(reading.within(), &left)
        {
            if room == 0 {
                return Some(left);
            }
            let goal = part.gfns.end.min(part.gfns.start + room * WORD);
            let marked = Span::new(part.gfns.start, goal);
            KnownLogs::of(version).mark(marked);
            room = room.saturating_sub(marked.len().div_ceil(WORD) + 1);
            left = left.after(&part, goal);
        }
        None
    }
}

/// Orders reads of D bits in tables before reads of marks.
pub(super) fn tables_before_marks() {
    // The entries before the marks: a harvest that saw no leaf sees its mark. See `keep_dirty`.
    fence!(keep.tables);
}

impl<F: Format, H: Host, M: Mode> Walk<'_, F, H, M> {
    /// Marks the page of `gfn` if its entry, about to become `new` from `old`, loses a D bit. Large leaves of slots
    /// that log need no mark (`arm`).
    #[inline(always)]
    pub(crate) fn keep_dirty(&self, (old, new): (Word, Word), level: Level, gfn: Gfn) {
        let dirty = |word: Word| F::is_present(word) && word.0 & F::DIRTY != 0;
        if self.vm.logs_by_bits() && level == Level::K4 && dirty(old) && !dirty(new) {
            // ORDER(keep): the mark before the CAS that zaps the leaf (`link.cas`); pairs with `tables_before_marks`.
            KnownLogs::of(self.slots()).mark(Span::sized(gfn, 1));
        }
    }

    /// [`KnownLogs::allow`], where slots log by permissions.
    #[inline]
    pub(crate) fn allow_stores(
        &self,
        gfns: Span<Gfn>,
        ring: Option<&Ring>,
        allow: impl FnOnce() -> bool,
    ) -> bool {
        if self.vm.logs_by_bits() {
            return allow();
        }
        KnownLogs::of(self.slots()).allow((ring, self.space.id), gfns, allow)
    }

    /// Whether tables must be zapped leaf by leaf in this walk's section, since leaves may have D bits to mark.
    pub(crate) fn keeps_tables(&self) -> bool {
        self.vm.logs_by_bits() && self.slots().logs_any()
    }
}

/// Words marked in one section, counting each slot as one word: some ten microseconds.
const ROOM: u64 = CHUNK as u64;

#[cfg(all(test, feature = "nested", not(any(loom, shuttle))))]
mod moves_tests;
#[cfg(all(test, not(loom)))]
mod tests;
