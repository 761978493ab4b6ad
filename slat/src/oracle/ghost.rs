//! The ghost state, and the rules over it. Each method of [`World`] is one step of the specification.

mod changes;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod uses;

use super::chunks::Chunks;
use super::violation::{Rule, Violation};
use crate::addr::{Gfn, Hva, Level, PAGE_SHIFT, PAGE_SIZE, Pfn, Span};
use crate::host::{HostError, HostPage, VcpuId};
use crate::slots::SpaceId;
use crate::table::format::Access;
use crate::why::Reason;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::mem::take;

/// The host's answers about a page.
#[derive(Clone, Copy, Debug)]
struct Given {
    /// The whole page, as answered first, with each permission that was answered since.
    page: HostPage,
    /// The settled change that took the page.
    taken: Option<Reason>,
    /// The settled change that withdrew write permission.
    withdrawn: Option<Reason>,
    /// When it was first given, or a permission was first answered: an earlier call may see less.
    at: u64,
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
    /// When it began.
    at: u64,
}

/// The progress of a change, over all of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Done {
    Nothing,
    Edited,
    Flushed,
}

/// An invalidation of host addresses.
#[derive(Debug)]
struct Change {
    hvas: Span<Hva>,
    why: Reason,
    done: Done,
    /// Another change of some of these addresses was open at the same time.
    is_crossed: bool,
    /// Pages that were told, and are not flushed yet.
    told: Vec<(Span<Hva>, Option<HostPage>)>,
    has_told: bool,
}

/// The oracle's knowledge of a vCPU.
#[derive(Default, Debug)]
pub(super) struct OfVcpu {
    /// The root that the VMM has loaded last.
    pub(super) root: Option<Pfn>,
    pub(super) ignored: u32,
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
    pages: [Chunks<Given>; 3],
    /// The pages of each frame: level, first frame, number of the page's first 4 KiB.
    owners: [Chunks<u64>; 3],
    /// Further pages of frames that have several.
    more_owners: BTreeSet<(usize, u64, u64)>,
    asks: Vec<Option<Ask>>,
    changes: BTreeMap<u64, Change>,
    next: u64,
    /// Number of calls of the host, and of answers.
    clock: u64,
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

    fn forget(&mut self, (index, key): (usize, u64)) {
        let Some(Given { page, .. }) = self.pages[index].remove(key) else { return };
        let first = self.owners[index].place(page.pfn.0);
        if *first == Some(key) {
            let more = (index, page.pfn.0, 0)..=(index, page.pfn.0, u64::MAX);
            let next = self.more_owners.range(more).next().copied();
            *first = next.map(|(.., key)| key);
            if let Some(next) = next {
                self.more_owners.remove(&next);
            }
        } else {
            self.more_owners.remove(&(index, page.pfn.0, key));
        }
    }

    /// A page has a frame that it did not have.
    pub(super) fn owns(&mut self, index: usize, pfn: Pfn, key: u64) {
        match self.owners[index].place(pfn.0) {
            Some(_) => _ = self.more_owners.insert((index, pfn.0, key)),
            free => *free = Some(key),
        }
    }

    fn forget_if_taken(&mut self, (index, key): (usize, u64)) {
        let given = self.pages[index].get(key);
        if given.is_some_and(|given| given.taken.is_some() || given.withdrawn.is_some()) {
            self.forget((index, key));
        }
    }

    /// The pages that have this frame.
    fn owners_of(&self, pfn: Pfn) -> Vec<(usize, u64)> {
        let mut all = Vec::new();
        for (index, level) in LEVELS.into_iter().enumerate() {
            let base = pfn.0 & !(level.pages() - 1);
            all.extend(self.owners[index].get(base).map(|key| (index, key)));
            if !self.more_owners.is_empty() {
                let more = self.more_owners.range((index, base, 0)..=(index, base, u64::MAX));
                all.extend(more.map(|&(.., key)| (index, key)));
            }
        }
        all
    }

    /// The pages that have frames of this large page.
    fn owners_in(&self, page: HostPage) -> Vec<(usize, u64)> {
        let pages = page.level.min(Level::G1).pages();
        let first = page.pfn.0 & !(pages - 1);
        let mut all = Vec::new();
        for (index, level) in LEVELS.into_iter().enumerate() {
            let base = first & !(level.pages() - 1);
            all.extend(self.owners[index].range(base, first + pages).map(|(_, key)| (index, key)));
            let more = self.more_owners.range((index, base, 0)..(index, first + pages, 0));
            all.extend(more.map(|&(.., key)| (index, key)));
        }
        all
    }

    /// The known pages that `hvas` touches.
    fn touched(&self, hvas: Span<Hva>) -> Vec<(usize, u64)> {
        let (from, to) = pages_of(hvas);
        let mut all = Vec::new();
        for (index, level) in LEVELS.into_iter().enumerate() {
            let base = from & !(level.pages() - 1);
            all.extend(self.pages[index].range(base, to).map(|(key, _)| (index, key)));
        }
        all
    }
}
