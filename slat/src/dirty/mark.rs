//! Marking: pages of slots that log become dirty.
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

use crate::addr::{Gfn, Hva, Level, Span};
use crate::host::Host;
use crate::slots::SlotsVersion;
use crate::slots::behind::Behind;
use crate::slots::bitmap::{CHUNK, WORD};
use crate::slots::publish::SlotSets;
use crate::sync::mode::Mode;
use crate::sync::prim::{SeqCst, fence};
use crate::sync::readside::{ReadSide, Seat};
use crate::table::entry::Word;
use crate::table::format::Format;
use crate::walk::Walk;

impl SlotSets {
    /// Logs writes to `gfns`, the frames of one leaf, where slots log, in one section. Call it after the write
    /// permission was given, or the write made: a harvest that takes the mark sees the permission, and withdraws it.
    #[inline]
    pub(crate) fn log_writes(&self, reads: &ReadSide, seat: &Seat, gfns: Span<Gfn>) {
        self.with(reads, seat, |now| {
            if now.version.logs_any() {
                log_writes_in(now.version, gfns);
            }
        });
    }

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
        let mut room = room();
        for slot in version.range(left) {
            let mut part = slot.gfns.clamp(&left);
            if slot.log_dirty {
                part.end = part.end.min(part.start + room * WORD);
                log_writes_in(version, part);
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

    /// Marks in one section. Each part is marked in the version in which it was looked up.
    fn mark_part_behind(&self, reads: &ReadSide, seat: &Seat, mut left: Behind) -> Option<Behind> {
        let reading = self.read(reads, seat);
        let version = reading.version();
        if !version.logs_any() {
            return None;
        }
        let mut room = room();
        while !left.is_nothing()
            && let Some(part) = self.behind(reading.published(), &left)
        {
            if room == 0 {
                return Some(left);
            }
            let goal = part.gfns.end.min(part.gfns.start + room * WORD);
            let marked = Span::new(part.gfns.start, goal);
            log_writes_in(version, marked);
            room = room.saturating_sub(marked.len().div_ceil(WORD) + 1);
            left = left.after(&part, goal);
        }
        None
    }
}

/// Orders reads of D bits in tables before reads of marks.
pub(super) fn tables_before_marks() {
    // ORDER(keep): the entries before the marks: a harvest that saw no leaf sees its mark. See `keep_dirty`.
    if !seeded!(KeepUnfenced) {
        fence(SeqCst);
    }
}

impl<F: Format, H: Host, M: Mode> Walk<'_, F, H, M> {
    /// Marks the page of `gfn` if its entry, about to become `new` from `old`, loses a D bit. Large leaves of slots
    /// that log need no mark (`arm`).
    #[inline(always)]
    pub(crate) fn keep_dirty(&self, (old, new): (Word, Word), level: Level, gfn: Gfn) {
        let dirty = |word: Word| F::is_present(word) && word.0 & F::DIRTY != 0;
        let keeps = self.vm.logs_by_bits() && !seeded!(LeafUnmarked);
        if keeps && level == Level::K4 && dirty(old) && !dirty(new) {
            // ORDER(keep): the mark before the CAS that zaps the leaf, a Release; pairs with `tables_before_marks`.
            self.space.memslots.log_writes(&self.vm.reads, self.seat, Span::sized(gfn, 1));
        }
    }

    /// Whether tables must be zapped leaf by leaf in this walk's section, since leaves may have D bits to mark.
    pub(crate) fn keeps_tables(&self) -> bool {
        let keeps = self.vm.logs_by_bits() && !seeded!(TableUnemptied);
        keeps && self.slots().logs_any()
    }
}

/// Words marked in one section, counting each slot as one word: some ten microseconds.
fn room() -> u64 {
    if seeded!(MarkedAtOnce) { 1 << 40 } else { CHUNK as u64 }
}

#[cold]
fn log_writes_in(version: SlotsVersion<'_>, gfns: Span<Gfn>) {
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

#[cfg(all(test, not(loom)))]
mod tests;
