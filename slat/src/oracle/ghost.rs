//! The ghost state, and the rules over it. Each method of [`World`] is one step of the specification.

use super::violation::{Rule, Violation};
use crate::addr::{Gfn, Hva, Level, PAGE_SHIFT, PAGE_SIZE, Pfn, Span};
use crate::dirty::harvest::TakenWords;
use crate::host::{HostError, HostPage, VcpuId};
use crate::slots::SpaceId;
use crate::slots::bitmap::WORD;
use crate::table::format::Access;
use crate::why::Reason;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::mem::take;

/// What the host has said of a page.
#[derive(Clone, Copy, Debug)]
struct Given {
    /// The whole page, as answered first, with each permission that was answered since.
    page: HostPage,
    /// The settled change that took the page.
    taken: Option<Reason>,
    /// The settled change that withdrew write permission.
    withdrawn: Option<Reason>,
    /// The rule that an unannounced change breaks, if the last change of the page explains it.
    suspect: Option<(Rule, Reason)>,
}

/// A call of the host that has not returned.
#[derive(Clone, Copy, Debug)]
struct Ask {
    page: u64,
    /// A change of the page was open, or has begun meanwhile: the answer may be old or new.
    is_unsure: bool,
    /// Number of the next change when the call began.
    next: u64,
}

/// An invalidation of host addresses.
#[derive(Debug)]
struct Change {
    hvas: Span<Hva>,
    why: Reason,
    /// All of it has been edited.
    is_applied: bool,
    /// All of it has been edited and flushed.
    is_taken: bool,
    /// Another change of some of these addresses was open at the same time.
    is_crossed: bool,
    /// Pages that were told, and are not flushed yet.
    told: Vec<(Span<Hva>, Option<HostPage>)>,
    has_told: bool,
}

/// What the oracle knows of a vCPU.
#[derive(Default, Debug)]
pub(super) struct OfVcpu {
    /// The root that the VMM has loaded last.
    pub(super) root: Option<Pfn>,
    ignored: u32,
    #[cfg(feature = "std")]
    pub(super) kicked: Option<std::time::Instant>,
}

/// The ghost state of a VM.
#[derive(Default, Debug)]
pub(super) struct World {
    found: Vec<Violation>,
    shares: bool,
    logs: bool,
    last: Pfn,
    /// By level, and by the number of the page's first 4 KiB.
    pages: [BTreeMap<u64, Given>; 3],
    /// The pages of each frame: level, first frame, number of the page's first 4 KiB.
    owners: BTreeSet<(usize, u64, u64)>,
    asks: Vec<Option<Ask>>,
    changes: BTreeMap<u64, Change>,
    next: u64,
    /// Lent table pages: the first one, and how many.
    tables: BTreeMap<u64, u64>,
    pub(super) vcpus: BTreeMap<VcpuId, OfVcpu>,
    /// Frames with a store that the next harvest must have.
    stored: BTreeSet<(SpaceId, Gfn)>,
    /// Open harvests and transactions, and whether two were open at once.
    taking: (u32, bool),
}

/// A look at the host's table when a change begins.
pub(super) const LOOK: &str = "Vm::invalidate";

const LEVELS: [Level; 3] = [Level::K4, Level::M2, Level::G1];

/// The numbers of the 4 KiB pages that `hvas` touches.
fn pages_of(hvas: Span<Hva>) -> (u64, u64) {
    (hvas.start.0 >> PAGE_SHIFT, hvas.end.0.div_ceil(PAGE_SIZE))
}

fn overlap((from, to): (u64, u64), (other, end): (u64, u64)) -> bool {
    from < end && other < to
}

pub(super) fn keeps_frames(why: Reason) -> bool {
    matches!(why, Reason::Protect | Reason::WriteProtect | Reason::SoftDirty)
}

impl World {
    pub(super) fn new(shares: bool, logs: bool, last: Pfn) -> Self {
        Self { shares, logs, last, ..Self::default() }
    }

    pub(super) fn take_found(&mut self) -> Vec<Violation> {
        take(&mut self.found)
    }

    pub(super) fn finds(&mut self, rule: Rule, call: &'static str, seen: String) {
        self.found.push(Violation { rule, call, seen });
    }

    /// The host is asked. Returns the number of the call.
    pub(super) fn asks(&mut self, hva: Hva) -> usize {
        let page = hva.0 >> PAGE_SHIFT;
        let covers = |change: &Change| overlap(pages_of(change.hvas), (page, page + 1));
        let is_unsure = self.changes.values().any(covers);
        let free = self.asks.iter().position(Option::is_none).unwrap_or(self.asks.len());
        if free == self.asks.len() {
            self.asks.push(None);
        }
        self.asks[free] = Some(Ask { page, is_unsure, next: self.next });
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
            Err(HostError::Fault) if !asked.is_unsure => return self.refused(call, hva, access),
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
        let level = if is_crossed { Level::K4 } else { level };
        let below = asked.page & (level.pages() - 1);
        let page = HostPage { pfn: Pfn(page.pfn.0 - below), level, ..page };
        if let Some((first, _)) = self.table_in(page.pfn.0, level.pages()) {
            let seen =
                format!("address {:#x} is frame {:#x}; frames {first:#x} on are lent", hva.0, page.pfn.0);
            return self.finds(Rule::TablePage, call, seen);
        }
        if asked.is_unsure {
            self.owners_of(page.pfn).into_iter().for_each(|at| self.forget_if_taken(at));
        } else {
            self.compare(call, (hva, access), page);
            self.give(call, asked.page - below, page);
        }
    }

    /// The host refuses an access.
    fn refused(&mut self, call: &'static str, hva: Hva, access: Access) {
        for (index, level) in LEVELS.into_iter().enumerate() {
            let key = hva.0 >> PAGE_SHIFT & !(level.pages() - 1);
            let Some(given) = self.pages[index].get(&key).copied() else { continue };
            if given.taken.is_some() || !given.page.allows(access) {
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
    fn compare(&mut self, call: &'static str, (hva, access): (Hva, Access), page: HostPage) {
        let number = hva.0 >> PAGE_SHIFT;
        let pfn = page.pfn.0 + (number & (page.level.pages() - 1));
        for (index, level) in LEVELS.into_iter().enumerate() {
            let key = number & !(level.pages() - 1);
            let Some(given) = self.pages[index].get(&key).copied() else { continue };
            if given.taken.is_some() {
                continue;
            }
            let before = given.page.pfn.0 + (number - key);
            let rule = if before != pfn {
                Rule::Moved
            } else if given.page.memory != page.memory {
                Rule::TypeChanged
            } else if given.page.allows(access) && !page.allows(access) {
                if access == Access::Write { Rule::WriteWithdrawn } else { Rule::ExecuteWithdrawn }
            } else {
                continue;
            };
            self.changed(rule, call, hva, &given, &format!("now {page:?}"));
            self.forget((index, key));
        }
        // The small pages inside a large one.
        let base = number & !(page.level.pages() - 1);
        let inside = self.pages[0]
            .range(base..base + page.level.pages())
            .find(|&(&key, small)| small.taken.is_none() && small.page.pfn.0 != page.pfn.0 + (key - base));
        if let Some((&key, &small)) = inside.filter(|_| page.level > Level::K4) {
            self.changed(Rule::Moved, call, Hva(key << PAGE_SHIFT), &small, &format!("now in {page:?}"));
            self.forget((0, key));
        }
    }

    /// Reports a change of a page that was not announced.
    fn changed(&mut self, rule: Rule, call: &'static str, hva: Hva, given: &Given, now: &str) {
        let rule = if call == LOOK { Rule::ChangedBefore } else { rule };
        let suspect = given.suspect.filter(|&(suspect, why)| {
            suspect != Rule::EndedTooEarly || !keeps_frames(why) || rule == Rule::WriteWithdrawn
        });
        let last = suspect.map_or("none", |(_, why)| why.name());
        let seen = format!("address {:#x} was {:?}, {now}; last change: {last}", hva.0, given.page);
        self.finds(suspect.map_or(rule, |(suspect, _)| suspect), call, seen);
    }

    /// Remembers an answer.
    fn give(&mut self, call: &'static str, key: u64, page: HostPage) {
        let index = usize::from(page.level.number() - 1);
        let mut given = Given { page, taken: None, withdrawn: None, suspect: None };
        let old = self.pages[index].get(&key).copied();
        if let Some(old) = old.filter(|old| old.page.pfn == page.pfn) {
            if let Some(why) = old.taken {
                given.suspect = Some((Rule::EndedTooEarly, why));
            } else {
                given.suspect = old.suspect;
                given.page.writable |= old.page.writable;
                given.page.execute |= old.page.execute;
                given.withdrawn = old.withdrawn.filter(|_| !page.writable);
            }
        }
        self.forget((index, key));
        let owner = self.owners_of(page.pfn).into_iter().find_map(|(index, key)| {
            let other = self.pages[index].get(&key)?;
            (other.taken.is_none() && other.page.writable && page.writable).then_some((index, key))
        });
        // A part of a large page is no second owner of it.
        let owner = owner.filter(|&(index, other)| {
            let level = LEVELS[index].max(page.level);
            other & !(level.pages() - 1) != key & !(level.pages() - 1)
        });
        if let Some((_, other)) = owner.filter(|_| !self.shares) {
            let (first, second) = (other << PAGE_SHIFT, key << PAGE_SHIFT);
            let seen =
                format!("frame {:#x} backs addresses {first:#x} and {second:#x}, writable", page.pfn.0);
            self.finds(Rule::TwoOwners, call, seen);
        }
        self.owners.insert((index, page.pfn.0, key));
        self.pages[index].insert(key, given);
    }

    fn forget(&mut self, (index, key): (usize, u64)) {
        if let Some(given) = self.pages[index].remove(&key) {
            self.owners.remove(&(index, given.page.pfn.0, key));
        }
    }

    fn forget_if_taken(&mut self, (index, key): (usize, u64)) {
        let given = self.pages[index].get(&key);
        if given.is_some_and(|given| given.taken.is_some() || given.withdrawn.is_some()) {
            self.forget((index, key));
        }
    }

    /// The pages that have this frame.
    fn owners_of(&self, pfn: Pfn) -> Vec<(usize, u64)> {
        let mut all = Vec::new();
        for (index, level) in LEVELS.into_iter().enumerate() {
            let base = pfn.0 & !(level.pages() - 1);
            let owners = self.owners.range((index, base, 0)..=(index, base, u64::MAX));
            all.extend(owners.map(|&(index, _, key)| (index, key)));
        }
        all
    }

    /// The known pages that `hvas` touches.
    fn touched(&self, hvas: Span<Hva>) -> Vec<(usize, u64)> {
        let (from, to) = pages_of(hvas);
        let mut all = Vec::new();
        for (index, level) in LEVELS.into_iter().enumerate() {
            let base = from & !(level.pages() - 1);
            all.extend(self.pages[index].range(base..to.max(base)).map(|(&key, _)| (index, key)));
        }
        all
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
        let change = Change {
            hvas,
            why,
            is_applied: false,
            is_taken: false,
            is_crossed,
            told: Vec::new(),
            has_told: false,
        };
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
        self.changes.get_mut(&id).into_iter().for_each(|change| change.is_applied = true);
    }

    /// Addresses of pages to look at, now that all of the change is flushed: the host must not have changed them yet.
    pub(super) fn unchanged(&self, id: u64, most: usize) -> Vec<(Hva, Pfn)> {
        let change = self.changes.get(&id).filter(|change| change.is_applied && !change.is_taken);
        let Some(change) = change.filter(|change| !change.is_crossed && !change.has_told) else {
            return Vec::new();
        };
        self.standing(change.hvas, most)
    }

    /// Addresses and frames of some pages that the host has given, and no change has taken.
    pub(super) fn standing(&self, hvas: Span<Hva>, most: usize) -> Vec<(Hva, Pfn)> {
        let (from, to) = pages_of(hvas);
        let pages = self.pages[0].range(from..to.max(from)).take(most);
        let standing = pages.filter(|(_, given)| given.taken.is_none());
        standing.map(|(&key, given)| (Hva(key << PAGE_SHIFT), given.page.pfn)).collect()
    }

    /// The host was looked at between a change's begin and its flush.
    pub(super) fn looked(&mut self, id: u64, (hva, before): (Hva, Pfn), now: HostPage) {
        let is_alone = self.changes.get(&id).is_some_and(|change| !change.is_crossed);
        if is_alone && now.pfn != before {
            let seen = format!("address {:#x} was frame {:#x}, now {now:?}", hva.0, before.0);
            self.finds(Rule::ChangedBeforeFlush, "Applied::settle", seen);
        }
    }

    /// What a change has edited is flushed.
    pub(super) fn settles(&mut self, id: u64) {
        let Some(change) = self.changes.get_mut(&id) else { return };
        let (hvas, why, told) = (change.hvas, change.why, take(&mut change.told));
        if change.is_applied && !core::mem::replace(&mut change.is_taken, true) {
            self.touched(hvas).into_iter().for_each(|at| self.take_page(at, hvas, why));
        }
        for (hvas, to) in told {
            self.touched(hvas).into_iter().for_each(|at| self.take_page(at, hvas, why));
            if let Some(page) = to.filter(|page| page.level == Level::K4 && page.pfn <= self.last) {
                let key = hvas.start.0 >> PAGE_SHIFT;
                self.forget((0, key));
                self.owners.insert((0, page.pfn.0, key));
                let suspect = Some((Rule::ToldOther, why));
                self.pages[0].insert(key, Given { page, taken: None, withdrawn: None, suspect });
            }
        }
    }

    fn take_page(&mut self, (index, key): (usize, u64), hvas: Span<Hva>, why: Reason) {
        let (from, to) = pages_of(hvas);
        let Some(given) = self.pages[index].get_mut(&key) else { return };
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
        let Some(change) = self.changes.remove(&id).filter(|change| !change.is_applied) else { return };
        let told = change.has_told || change.why.page_by_page();
        let rule = if told { Rule::NotTold } else { Rule::Cancelled };
        for (index, key) in self.touched(change.hvas) {
            let Some(given) = self.pages[index].get_mut(&key) else { continue };
            if given.suspect.is_none_or(|(suspect, _)| suspect != Rule::ToldOther) {
                given.suspect = Some((rule, change.why));
            }
        }
    }

    /// Memslots go: the host may change what was behind them without a change.
    pub(super) fn forgets(&mut self) {
        self.pages.iter_mut().for_each(BTreeMap::clear);
        self.owners.clear();
        self.stored.clear();
        self.asks.iter_mut().flatten().for_each(|ask| ask.is_unsure = true);
    }

    /// The lent table pages among `pages` frames from `first` on.
    fn table_in(&self, first: u64, pages: u64) -> Option<(u64, u64)> {
        let (&table, &lent) = self.tables.range(..first + pages).next_back()?;
        (table + lent > first).then_some((table, lent))
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
        rule.into_iter().for_each(|rule| self.finds(rule, CALL, seen()));
        if let Some(frame) = (pfn.0..pfn.0 + pages).find(|&frame| self.guests_use(Pfn(frame))) {
            self.finds(Rule::LentGuestPage, CALL, format!("{}: a guest has frame {frame:#x}", seen()));
        }
        self.tables.insert(pfn.0, pages);
    }

    pub(super) fn takes_back(&mut self, pfn: Pfn) {
        self.tables.remove(&pfn.0);
    }

    fn guests_use(&self, pfn: Pfn) -> bool {
        let is_standing = |(index, key): (usize, u64)| self.pages[index][&key].taken.is_none();
        !self.owners.is_empty() && self.owners_of(pfn).into_iter().any(is_standing)
    }

    pub(super) fn frees(&mut self, pfn: Pfn) {
        if self.guests_use(pfn) {
            self.finds(Rule::FreedInUse, "Oracle::frees", format!("frame {:#x}", pfn.0));
        }
    }

    /// The guest uses a translation to `pfn`; a kick waits or not.
    pub(super) fn uses(
        &mut self,
        (vcpu, kicked): (VcpuId, bool),
        (space, gfn): (SpaceId, Gfn),
        (pfn, access): (Pfn, Access),
    ) {
        const CALL: &str = "InGuest::uses";
        const MOST: u32 = 64;
        let state = self.vcpus.entry(vcpu).or_default();
        state.ignored = if kicked { state.ignored + 1 } else { 0 };
        if state.ignored == MOST {
            self.finds(Rule::KickIgnored, CALL, format!("vCPU {}: {MOST} accesses since", vcpu.0));
        }
        let owners: Vec<_> =
            self.owners_of(pfn).into_iter().map(|(index, key)| self.pages[index][&key]).collect();
        let seen = |why: Reason| {
            format!("vCPU {}: gfn {:#x}, frame {:#x}, after {}", vcpu.0, gfn.0, pfn.0, why.name())
        };
        let is_gone = owners.iter().all(|given| given.taken.is_some());
        let is_withdrawn = owners.iter().all(|given| given.taken.or(given.withdrawn).is_some());
        if let Some(why) = owners.first().and_then(|given| given.taken).filter(|_| is_gone) {
            self.finds(Rule::StaleUse, CALL, seen(why));
        } else if access == Access::Write && is_withdrawn {
            let why = owners.iter().find_map(|given| given.withdrawn);
            why.into_iter().for_each(|why| self.finds(Rule::StaleWrite, CALL, seen(why)));
        }
        if access == Access::Write && self.logs {
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

    /// The VM ends.
    pub(super) fn ends_all(&mut self) {
        let open: Vec<_> = self.changes.values().map(|change| (change.hvas, change.why)).collect();
        for (hvas, why) in open {
            self.finds(Rule::NeverEnded, "Vm::drop", format!("{} of {hvas:x?}", why.name()));
        }
    }
}
