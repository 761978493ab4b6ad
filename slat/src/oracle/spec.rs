//! The specification: each method is a step of the host, the VMM or the engine, with the rules that it may break.
//!
//! | steps | methods |
//! |---|---|
//! | the host is asked, and answers | `asks`, `asked`, `answered` |
//! | a change of the host's table | `begins`, `tells`, `applies`, `looked`, `settles`, `ends` |
//! | memslots go; the VM ends | `forgets`, `ends_all` |
//! | frames | `lends`, `takes_back`, `frees` |
//! | the guest runs | `uses`, `guest_stores` |
//! | dirty logs | `stores`, `begins_to_take`, `ends_to_take`, `harvests` |

use super::chunks::Chunks;
use super::state::{Ask, Change, Done, Given, LEVELS, LOOK, World, keeps_frames, overlap, pages_of};
use super::violation::Rule;
use crate::addr::{Gfn, Hva, Level, PAGE_SHIFT, Pfn, Span};
use crate::dirty::harvest::TakenWords;
use crate::host::{HostError, HostPage, VcpuId};
use crate::slots::SpaceId;
use crate::slots::bitmap::WORD;
use crate::table::format::Access;
use crate::why::Reason;
use alloc::format;
use alloc::vec::Vec;
use core::mem::take;

/// After so many calls and answers of the host, an old page that was answered once more was no sign of an early end.
const RECENT: u64 = 1024;

impl World {
    /// The host is asked. Returns the number of the call.
    pub(super) fn asks(&mut self, hva: Hva) -> usize {
        let page = hva.0 >> PAGE_SHIFT;
        let covers = |change: &Change| overlap(pages_of(change.hvas), (page, page + 1));
        let is_unsure = self.changes.values().any(covers);
        let free = self.asks.iter().position(Option::is_none).unwrap_or(self.asks.len());
        if free == self.asks.len() {
            self.asks.push(None);
        }
        self.clock += 1;
        self.asks[free] = Some(Ask { page, is_unsure, next: self.next, at: self.clock });
        free
    }

    /// The call has ended, by a panic.
    pub(super) fn asked(&mut self, ask: usize) {
        self.asks[ask] = None;
    }

    /// The host has answered.
    pub(super) fn answered(
        &mut self,
        ask: usize,
        (call, sleeps): (&'static str, bool),
        (hva, access): (Hva, Access),
        answer: Result<HostPage, HostError>,
    ) {
        let Some(asked) = self.asks[ask].take() else { return };
        let page = match answer {
            Ok(page) => page,
            Err(HostError::Fault) if !asked.is_unsure => return self.refused(call, hva, (access, asked.at)),
            Err(_) => return,
        };
        let level = page.level.min(Level::G1);
        if page.pfn > self.last || (page.pfn.0 ^ asked.page) & (level.pages() - 1) != 0 {
            let seen = format!("address {:#x} is frame {:#x}, level {level:?}", hva.0, page.pfn.0);
            return self.finds(Rule::BadFrame, call, seen);
        }
        if sleeps && access == Access::Write && !page.writable {
            let seen = format!("{} of address {:#x}: {page:?}", access.name(), hva.0);
            return self.finds(Rule::NotServed, call, seen);
        }
        // A large page that a change touches counts as its part.
        let whole = Span::sized(Hva(hva.0 & !(level.bytes() - 1)), level.bytes());
        let is_touched = |change: &Change| overlap(pages_of(change.hvas), pages_of(whole));
        let is_crossed = self.next != asked.next || self.changes.values().any(is_touched);
        let answered = page;
        let level = if is_crossed { Level::K4 } else { level };
        let below = asked.page & (level.pages() - 1);
        let page = HostPage { pfn: Pfn(page.pfn.0 - below), level, ..page };
        if let Some((first, _)) = self.table_in(page.pfn.0, level.pages()).filter(|_| !self.shares) {
            let seen =
                format!("address {:#x} is frame {:#x}; frames {first:#x} on are lent", hva.0, page.pfn.0);
            return self.finds(Rule::TablePage, call, seen);
        }
        if asked.is_unsure || is_crossed {
            // The engine may map all of it.
            self.owners_in(answered).into_iter().for_each(|at| self.forget_if_taken(at));
        }
        if !asked.is_unsure {
            self.compare(call, hva, (access, asked.at), page);
            self.give(call, asked.page - below, page);
        }
    }

    /// The host refuses an access.
    fn refused(&mut self, call: &'static str, hva: Hva, (access, asked): (Access, u64)) {
        for (index, level) in LEVELS.into_iter().enumerate() {
            let key = hva.0 >> PAGE_SHIFT & !(level.pages() - 1);
            let Some(given) = self.pages[index].get(key) else { continue };
            if given.taken.is_some() || given.at > asked || !given.page.allows(access) {
                continue;
            }
            let rule = match access {
                Access::Read => Rule::Removed,
                Access::Write => Rule::WriteWithdrawn,
                Access::Fetch => Rule::ExecuteWithdrawn,
            };
            self.changed(rule, call, hva, &given, "the host refuses it");
            self.forget((index, key));
        }
    }

    /// Compares an answer with what the host said before.
    fn compare(&mut self, call: &'static str, hva: Hva, (access, asked): (Access, u64), page: HostPage) {
        let number = hva.0 >> PAGE_SHIFT;
        let pfn = page.pfn.0 + (number & (page.level.pages() - 1));
        for (index, level) in LEVELS.into_iter().enumerate() {
            let key = number & !(level.pages() - 1);
            let Some(given) = self.pages[index].get(key) else { continue };
            if given.taken.is_some() {
                continue;
            }
            let before = given.page.pfn.0 + (number - key);
            let rule = if before != pfn {
                Rule::Moved
            } else if given.page.memory != page.memory {
                Rule::TypeChanged
            } else if given.at < asked && given.page.allows(access) && !page.allows(access) {
                if access == Access::Write { Rule::WriteWithdrawn } else { Rule::ExecuteWithdrawn }
            } else {
                continue;
            };
            self.changed(rule, call, hva, &given, &format!("now {page:?}"));
            self.forget((index, key));
        }
        // The small pages inside a large one.
        if page.level > Level::K4 {
            let base = number & !(page.level.pages() - 1);
            let inside = self.pages[0]
                .range(base, base + page.level.pages())
                .find(|&(key, small)| small.taken.is_none() && small.page.pfn.0 != page.pfn.0 + (key - base));
            if let Some((key, small)) = inside {
                self.changed(Rule::Moved, call, Hva(key << PAGE_SHIFT), &small, &format!("now in {page:?}"));
                self.forget((0, key));
            }
        }
    }

    /// Reports a change of a page that was not announced.
    fn changed(&mut self, rule: Rule, call: &'static str, hva: Hva, given: &Given, now: &str) {
        let rule = if call == LOOK { Rule::ChangedBefore } else { rule };
        // A harmless change of long ago explains nothing.
        let is_recent = self.clock - given.at <= RECENT;
        let suspect = given.suspect.filter(|&(suspect, why)| {
            suspect != Rule::EndedTooEarly
                || if keeps_frames(why) { rule == Rule::WriteWithdrawn } else { is_recent }
        });
        let last = given.suspect.map_or("none", |(_, why)| why.name());
        let seen = format!("address {:#x} was {:?}, {now}; last change: {last}", hva.0, given.page);
        self.finds(suspect.map_or(rule, |(suspect, _)| suspect), call, seen);
    }

    /// Remembers an answer.
    fn give(&mut self, call: &'static str, key: u64, page: HostPage) {
        let index = usize::from(page.level.number() - 1);
        self.clock += 1;
        let mut given = Given { page, taken: None, withdrawn: None, at: self.clock, suspect: None };
        let old = self.pages[index].get(key);
        if let Some(old) = old.filter(|old| old.page.pfn == page.pfn) {
            if let Some(why) = old.taken {
                given.suspect = Some((Rule::EndedTooEarly, why));
            } else {
                given.suspect = old.suspect;
                let grants = page.writable && !old.page.writable || page.execute && !old.page.execute;
                given.at = if grants { given.at } else { old.at };
                given.page.writable |= old.page.writable;
                given.page.execute |= old.page.execute;
                given.withdrawn = old.withdrawn.filter(|_| !page.writable);
            }
        }
        if old.is_none_or(|old| old.page.pfn != page.pfn || old.taken.is_some()) {
            self.forget((index, key));
            if page.writable && !self.shares {
                self.is_first_owner(call, key, page);
            }
            self.owns(index, page.pfn, key);
        }
        *self.pages[index].place(key) = Some(given);
    }

    fn is_first_owner(&mut self, call: &'static str, key: u64, page: HostPage) {
        let other = self.owners_of(page.pfn).into_iter().find(|&(index, other)| {
            // A part of a large page is no second owner of it.
            let mask = !(LEVELS[index].max(page.level).pages() - 1);
            let given = self.pages[index].get(other);
            given.is_some_and(|given| given.taken.is_none() && given.page.writable)
                && other & mask != key & mask
        });
        if let Some((_, other)) = other {
            let [first, second] = [other, key].map(|key| key << PAGE_SHIFT);
            let seen =
                format!("frame {:#x} backs addresses {first:#x} and {second:#x}, writable", page.pfn.0);
            self.finds(Rule::TwoOwners, call, seen);
        }
    }

    /// A change begins. Returns its number.
    pub(super) fn begins(&mut self, hvas: Span<Hva>, why: Reason) -> u64 {
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

    pub(super) fn tells(&mut self, id: u64, hvas: Span<Hva>, to: Option<HostPage>) {
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

    pub(super) fn applies(&mut self, id: u64) {
        if let Some(change) = self.changes.get_mut(&id) {
            change.done = Done::Edited;
        }
    }

    /// Addresses of pages to look at, now that all of the change is flushed: the host must not have changed them yet.
    pub(super) fn unchanged(&self, id: u64, most: usize) -> Vec<(Hva, Pfn)> {
        let change = self.changes.get(&id).filter(|change| change.done == Done::Edited);
        let Some(change) = change.filter(|change| !change.is_crossed && !change.has_told) else {
            return Vec::new();
        };
        self.standing(change.hvas, most)
    }

    /// The host was looked at between a change's begin and its flush.
    pub(super) fn looked(&mut self, id: u64, (hva, before): (Hva, Pfn), now: HostPage) {
        let is_alone = self.changes.get(&id).is_some_and(|change| !change.is_crossed);
        if is_alone && now.pfn != before {
            let seen = format!("address {:#x} was frame {:#x}, now {now:?}", hva.0, before.0);
            self.finds(Rule::ChangedBeforeFlush, "Applied::settle", seen);
        }
    }

    /// The edits of a change are flushed.
    pub(super) fn settles(&mut self, id: u64) {
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

    pub(super) fn ends(&mut self, id: u64) {
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
    pub(super) fn forgets(&mut self) {
        self.pages.iter_mut().for_each(Chunks::clear);
        self.owners.iter_mut().for_each(Chunks::clear);
        self.more_owners.clear();
        self.stored.clear();
        self.asks.iter_mut().flatten().for_each(|ask| ask.is_unsure = true);
    }

    /// The VM ends.
    pub(super) fn ends_all(&mut self) {
        let open: Vec<_> = self.changes.values().map(|change| (change.hvas, change.why)).collect();
        for (hvas, why) in open {
            self.finds(Rule::NeverEnded, "Vm::drop", format!("{} of {hvas:x?}", why.name()));
        }
    }

    pub(super) fn lends(&mut self, (address, pfn): (usize, Pfn), pages: u64, is_there: bool) {
        const CALL: &str = "TableMemory::lend";
        let bytes = (pages << PAGE_SHIFT) as usize;
        let seen = || format!("{pages} pages from frame {:#x} on, at {address:#x}", pfn.0);
        let rule = if self.table_in(pfn.0, pages).is_some() {
            Some(Rule::LentTwice)
        } else if !pfn.0.is_multiple_of(pages) || !address.is_multiple_of(bytes) {
            Some(Rule::LentMisaligned)
        } else {
            (!is_there).then_some(Rule::LentElsewhere)
        };
        if let Some(rule) = rule {
            self.finds(rule, CALL, seen());
        }
        if let Some(frame) = (pfn.0..pfn.0 + pages).find(|&frame| !self.shares && self.guests_use(Pfn(frame)))
        {
            self.finds(Rule::LentGuestPage, CALL, format!("{}: a guest has frame {frame:#x}", seen()));
        }
        self.tables.insert(pfn.0, pages);
    }

    pub(super) fn takes_back(&mut self, pfn: Pfn) {
        self.tables.remove(&pfn.0);
    }

    pub(super) fn frees(&mut self, pfn: Pfn) {
        if self.guests_use(pfn) {
            self.finds(Rule::FreedInUse, "Oracle::frees", format!("frame {:#x}", pfn.0));
        }
    }

    /// The guest uses a translation to `pfn`; a kick waits or not.
    pub(super) fn uses(&mut self, (vcpu, kicked): (VcpuId, bool), gfn: Gfn, (pfn, access): (Pfn, Access)) {
        const CALL: &str = "InGuest::uses";
        const MOST: u32 = 4096;
        let state = self.vcpus.entry(vcpu).or_default();
        state.ignored = if kicked { state.ignored + 1 } else { 0 };
        if state.ignored == MOST {
            self.finds(Rule::KickIgnored, CALL, format!("vCPU {}: {MOST} accesses since", vcpu.0));
        }
        let owners: Vec<_> =
            self.owners_of(pfn).into_iter().filter_map(|(index, key)| self.pages[index].get(key)).collect();
        let seen = |why: Reason| {
            format!("vCPU {}: gfn {:#x}, frame {:#x}, after {}", vcpu.0, gfn.0, pfn.0, why.name())
        };
        let is_gone = owners.iter().all(|given| given.taken.is_some());
        let is_withdrawn = owners.iter().all(|given| given.taken.or(given.withdrawn).is_some());
        if let Some(why) = owners.first().and_then(|given| given.taken).filter(|_| is_gone) {
            self.finds(Rule::StaleUse, CALL, seen(why));
        } else if access == Access::Write
            && is_withdrawn
            && let Some(why) = owners.iter().find_map(|given| given.withdrawn)
        {
            self.finds(Rule::StaleWrite, CALL, seen(why));
        }
    }

    /// No store of a vCPU will be in the bitmaps.
    pub(super) fn logs_in_rings(&mut self) {
        self.logs = false;
    }

    /// The guest has stored. A fault marked the page before, or the walk set its Dirty bit.
    pub(super) fn guest_stores(&mut self, space: SpaceId, gfn: Gfn) {
        if self.logs {
            self.stores(space, gfn);
        }
    }

    pub(super) fn stores(&mut self, space: SpaceId, gfn: Gfn) {
        if self.taking.0 == 0 {
            self.stored.insert((space, gfn));
        }
    }

    /// A harvest or a transaction begins.
    pub(super) fn begins_to_take(&mut self) {
        self.takes += 1;
        self.taking = (self.taking.0 + 1, self.taking.0 > 0 || self.taking.1);
    }

    pub(super) fn ends_to_take(&mut self, clears: bool) {
        let left = self.taking.0 - 1;
        self.taking = (left, self.taking.1 && left > 0);
        if clears {
            self.stored.clear();
        }
    }

    /// A harvest has taken `words` from the log of `gfns`.
    pub(super) fn harvests(&mut self, (space, gfns): (SpaceId, Span<Gfn>), words: &TakenWords) {
        let expected = self.stored.range((space, gfns.start)..(space, gfns.end));
        let expected: Vec<_> = expected.copied().collect();
        for stored in expected {
            self.stored.remove(&stored);
            let page = stored.1.0 - gfns.start.0;
            let has = |&(word, bits): &(u64, u64)| word == page / WORD && bits >> (page % WORD) & 1 != 0;
            if !self.taking.1 && !words.words.iter().any(has) {
                self.finds(Rule::StoreUnlogged, "GuestSpace::harvest", format!("gfn {:#x}", stored.1.0));
            }
        }
    }
}
