//! Marking: pages of slots that log are dirty from here on.
//!
//! **D bits outlive their leaves**: what is written in a leaf is marked in the bitmap before the leaf goes.
//!
//! Before, not after: who finds no leaf any more looks at the marks next ([`super::log`]), and must find this one. Where the edit
//! then fails, because the leaf has changed, the page was written all the same. And where a whole harvest takes the mark in
//! between, the edit may succeed though the leaf has been written once more: so a harvest waits for such edits
//! ([`super::log`]).
//!
//! Who looks up the slot does so between reading the leaf and replacing it, in one section: if the edit succeeds, the leaf
//! was there at that moment, and it was this slot's ([`super::log`] says why).
//!
//! **Tables** go with what hangs in them, and no harvest looks at their leaves again. So where anything is logged by D bits,
//! tables are emptied leaf by leaf first, and go in a second pass, when faults have long been waiting and nothing can
//! have come back ([`Invalidation`](crate::Invalidation)).

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
}

/// The D bits of tables have been read, and the marks are looked at next.
pub(super) fn tables_before_marks() {
    // ORDER(keep): the entries before the marks: a harvest that saw no leaf any more sees its mark. See `keep_dirty`.
    if !seeded!(KeepUnfenced) {
        fence(SeqCst);
    }
}

impl<F: Format, H: Host, M: Mode> Walk<'_, F, H, M> {
    /// The entry of `gfn` is about to become `new` from `old`. Large leaves of slots that log have nothing to keep
    /// (`arm`).
    #[inline(always)]
    pub(crate) fn keep_dirty(&self, (old, new): (Word, Word), level: Level, gfn: Gfn) {
        let dirty = |word: Word| F::is_present(word) && word.0 & F::DIRTY != 0;
        let keeps = self.vm.logs_by_bits() && !seeded!(LeafUnmarked);
        if keeps && level == Level::K4 && dirty(old) && !dirty(new) {
            // ORDER(keep): the mark before the CAS by which the leaf goes, a Release; pairs with `tables_before_marks`.
            self.space.memslots.log_writes(&self.vm.reads, self.seat, Span::sized(gfn, 1));
        }
    }

    /// Whether leaves in a table may have something to keep, for the section of this walk.
    pub(crate) fn keeps_tables(&self) -> bool {
        let keeps = self.vm.logs_by_bits() && !seeded!(TableUnemptied);
        keeps && self.space.memslots.read(&self.vm.reads, self.seat).version.logs_any()
    }
}

/// Words that are marked in one section, where a slot that is looked at counts as one: some ten microseconds.
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
