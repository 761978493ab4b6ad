//! Changes of the host's table: begin, edits, flush, end.

use super::{Change, Done, Given, LEVELS, World, keeps_frames, overlap, pages_of};
use crate::addr::{Hva, Level, PAGE_SHIFT, Pfn, Span};
use crate::host::HostPage;
use crate::oracle::chunks::Chunks;
use crate::oracle::violation::Rule;
use crate::why::Reason;
use alloc::format;
use alloc::vec::Vec;
use core::mem::take;

impl World {
    /// A change begins. Returns its number.
    pub(in crate::oracle) fn begins(&mut self, hvas: Span<Hva>, why: Reason) -> u64 {
        let span = pages_of(hvas);
        for ask in self.asks.iter_mut().flatten() {
            ask.is_unsure |= overlap(span, (ask.page, ask.page + 1));
        }
        let mut is_crossed = false;
        for other in self.changes.values_mut().filter(|other| overlap(span, pages_of(other.hvas))) {
            (other.is_crossed, is_crossed) = (true, true);
        }
        let change = Change { hvas, why, done: Done::Nothing, is_crossed, told: Vec::new(), has_told: false };
        self.next += 1;
        self.changes.insert(self.next, change);
        self.next
    }

    pub(in crate::oracle) fn tells(&mut self, id: u64, hvas: Span<Hva>, to: Option<HostPage>) {
        let Some(change) = self.changes.get_mut(&id) else { return };
        let (all, told) = (pages_of(change.hvas), pages_of(hvas));
        let is_inside = hvas.is_empty() || all.0 <= told.0 && told.1 <= all.1;
        let announced = change.hvas;
        change.told.push((hvas, to));
        change.has_told = true;
        if !is_inside {
            let seen = format!("{hvas:x?} of {announced:x?}");
            self.finds(Rule::ToldOutside, "Pages::changed", seen);
        }
    }

    pub(in crate::oracle) fn applies(&mut self, id: u64) {
        if let Some(change) = self.changes.get_mut(&id) {
            change.done = Done::Edited;
        }
    }

    /// Addresses of pages to look at, now that all of the change is flushed: the host must not have changed them yet.
    pub(in crate::oracle) fn unchanged(&self, id: u64, most: usize) -> Vec<(Hva, Pfn)> {
        let change = self.changes.get(&id).filter(|change| change.done == Done::Edited);
        let Some(change) = change.filter(|change| !change.is_crossed && !change.has_told) else {
            return Vec::new();
        };
        self.standing(change.hvas, most)
    }

    /// Addresses and frames of some pages that the host has given, and no change has taken.
    pub(in crate::oracle) fn standing(&self, hvas: Span<Hva>, most: usize) -> Vec<(Hva, Pfn)> {
        let (from, to) = pages_of(hvas);
        let pages = LEVELS.into_iter().zip(&self.pages);
        let pages = pages.flat_map(|(level, pages)| pages.range(from & !(level.pages() - 1), to));
        let standing = pages.filter(|(_, given)| given.taken.is_none()).take(most);
        // Of a large page, a part that changes.
        let part = |(key, given): (u64, Given)| {
            let number = key.max(from);
            (Hva(number << PAGE_SHIFT), given.page.pfn + (number - key))
        };
        standing.map(part).collect()
    }

    /// The host was looked at between a change's begin and its flush.
    pub(in crate::oracle) fn looked(&mut self, id: u64, (hva, before): (Hva, Pfn), now: HostPage) {
        let is_alone = self.changes.get(&id).is_some_and(|change| !change.is_crossed);
        if is_alone && now.pfn != before {
            let seen = format!("address {:#x} was frame {:#x}, now {now:?}", hva.0, before.0);
            self.finds(Rule::ChangedBeforeFlush, "Applied::settle", seen);
        }
    }

    /// The edits of a change are flushed.
    pub(in crate::oracle) fn settles(&mut self, id: u64) {
        let Some(change) = self.changes.get_mut(&id) else { return };
        let (hvas, why, told) = (change.hvas, change.why, take(&mut change.told));
        let is_crossed = change.is_crossed;
        if change.done == Done::Edited {
            change.done = Done::Flushed;
            self.touched(hvas).into_iter().for_each(|at| self.take_page(at, hvas, why));
        }
        for (hvas, to) in told {
            if let Some(page) = to.filter(|page| is_crossed || page.level > Level::K4) {
                // The engine may map a part of it in place. The other change may have the page replaced.
                self.touched(hvas).into_iter().for_each(|at| self.forget(at));
                self.owners_in(page).into_iter().for_each(|at| self.forget_if_taken(at));
                continue;
            }
            self.touched(hvas).into_iter().for_each(|at| self.take_page(at, hvas, why));
            if let Some(page) = to.filter(|page| page.pfn <= self.last) {
                let key = hvas.start.0 >> PAGE_SHIFT;
                self.forget((0, key));
                self.owns(0, page.pfn, key);
                let suspect = Some((Rule::ToldOther, why));
                *self.pages[0].place(key) =
                    Some(Given { page, taken: None, withdrawn: None, at: self.clock, suspect });
            }
        }
    }

    fn take_page(&mut self, (index, key): (usize, u64), hvas: Span<Hva>, why: Reason) {
        let (from, to) = pages_of(hvas);
        let Some(given) = self.pages[index].get_mut(key) else { return };
        if from > key || key + LEVELS[index].pages() > to {
            // A part of it stays.
            self.forget((index, key));
        } else if keeps_frames(why) {
            given.page.writable = false;
            (given.withdrawn, given.suspect) = (Some(why), Some((Rule::EndedTooEarly, why)));
        } else {
            given.taken = Some(why);
        }
    }

    pub(in crate::oracle) fn ends(&mut self, id: u64) {
        self.settles(id);
        let Some(change) = self.changes.remove(&id).filter(|change| change.done == Done::Nothing) else {
            return;
        };
        let told = change.has_told || change.why.page_by_page();
        let rule = if told { Rule::NotTold } else { Rule::Cancelled };
        for (index, key) in self.touched(change.hvas) {
            let Some(given) = self.pages[index].get_mut(key) else { continue };
            if given.suspect.is_none_or(|(suspect, _)| suspect != Rule::ToldOther) {
                given.suspect = Some((rule, change.why));
            }
        }
    }

    /// Memslots go: the host may change what was behind them without a change.
    pub(in crate::oracle) fn forgets(&mut self) {
        self.pages.iter_mut().for_each(Chunks::clear);
        self.owners.iter_mut().for_each(Chunks::clear);
        self.more_owners.clear();
        self.stored.clear();
        self.asks.iter_mut().flatten().for_each(|ask| ask.is_unsure = true);
    }

    /// The VM ends.
    pub(in crate::oracle) fn ends_all(&mut self) {
        let open: Vec<_> = self.changes.values().map(|change| (change.hvas, change.why)).collect();
        for (hvas, why) in open {
            self.finds(Rule::NeverEnded, "Vm::drop", format!("{} of {hvas:x?}", why.name()));
        }
    }
}
