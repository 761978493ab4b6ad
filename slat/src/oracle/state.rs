//! The ghost state: what the oracle remembers of a VM, and look-ups in it. `spec` has the rules.

use super::chunks::Chunks;
use super::violation::{Rule, Violation};
use crate::addr::{Gfn, Hva, Level, PAGE_SHIFT, PAGE_SIZE, Pfn, Span};
use crate::host::{HostPage, VcpuId};
use crate::slots::SpaceId;
use crate::why::Reason;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::mem::take;

/// The host's answers about a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    /// The whole page, as answered first, with each permission that was answered since.
    pub(super) page: HostPage,
    /// The settled change that took the page.
    pub(super) taken: Option<Reason>,
    /// The settled change that withdrew write permission.
    pub(super) withdrawn: Option<Reason>,
    /// When it was first given, or a permission was first answered: an earlier call may see less.
    pub(super) at: u64,
    /// The rule that an unannounced change breaks, if the last change of the page explains it.
    pub(super) suspect: Option<(Rule, Reason)>,
}

/// A call of the host that has not returned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) page: u64,
    /// A change of the page was open, or has begun meanwhile: the answer may be old or new.
    pub(super) is_unsure: bool,
    /// Number of the next change when the call began.
    pub(super) next: u64,
    /// When it began.
    pub(super) at: u64,
}

/// The progress of a change, over all of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Done {
    Nothing,
    Edited,
    Flushed,
}

/// An invalidation of host addresses.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) hvas: Span<Hva>,
    pub(super) why: Reason,
    pub(super) done: Done,
    /// Another change of some of these addresses was open at the same time.
    pub(super) is_crossed: bool,
    /// Pages that were told, and are not flushed yet.
    pub(super) told: Vec<(Span<Hva>, Option<HostPage>)>,
    pub(super) has_told: bool,
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
    pub(super) found: Vec<Violation>,
    pub(super) shares: bool,
    pub(super) logs: bool,
    pub(super) last: Pfn,
    /// By level, and by the number of the page's first 4 KiB.
    pub(super) pages: [Chunks<Given>; 3],
    /// The pages of each frame: level, first frame, number of the page's first 4 KiB.
    pub(super) owners: [Chunks<u64>; 3],
    /// Further pages of frames that have several.
    pub(super) more_owners: BTreeSet<(usize, u64, u64)>,
    pub(super) asks: Vec<Option<Ask>>,
    pub(super) changes: BTreeMap<u64, Change>,
    pub(super) next: u64,
    /// Number of calls of the host, and of answers.
    pub(super) clock: u64,
    /// Lent table pages: the first one, and how many.
    pub(super) tables: BTreeMap<u64, u64>,
    pub(super) vcpus: BTreeMap<VcpuId, OfVcpu>,
    /// Frames with a store that the next harvest must have.
    pub(super) stored: BTreeSet<(SpaceId, Gfn)>,
    /// Number of harvests and transactions that have begun.
    pub(super) takes: u64,
    /// Open harvests and transactions, and whether two were open at once.
    pub(super) taking: (u32, bool),
}

/// A look at the host's table when a change begins.
pub(super) const LOOK: &str = "Vm::invalidate";

pub(super) const LEVELS: [Level; 3] = [Level::K4, Level::M2, Level::G1];

/// The numbers of the 4 KiB pages that `hvas` touches.
pub(super) fn pages_of(hvas: Span<Hva>) -> (u64, u64) {
    (hvas.start.0 >> PAGE_SHIFT, hvas.end.0.div_ceil(PAGE_SIZE))
}

pub(super) fn overlap((from, to): (u64, u64), (other, end): (u64, u64)) -> bool {
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

    pub(super) fn forget(&mut self, (index, key): (usize, u64)) {
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

    pub(super) fn forget_if_taken(&mut self, (index, key): (usize, u64)) {
        let given = self.pages[index].get(key);
        if given.is_some_and(|given| given.taken.is_some() || given.withdrawn.is_some()) {
            self.forget((index, key));
        }
    }

    /// The pages that have this frame.
    pub(super) fn owners_of(&self, pfn: Pfn) -> Vec<(usize, u64)> {
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
    pub(super) fn owners_in(&self, page: HostPage) -> Vec<(usize, u64)> {
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
    pub(super) fn touched(&self, hvas: Span<Hva>) -> Vec<(usize, u64)> {
        let (from, to) = pages_of(hvas);
        let mut all = Vec::new();
        for (index, level) in LEVELS.into_iter().enumerate() {
            let base = from & !(level.pages() - 1);
            all.extend(self.pages[index].range(base, to).map(|(key, _)| (index, key)));
        }
        all
    }

    /// Addresses and frames of some pages that the host has given, and no change has taken.
    pub(super) fn standing(&self, hvas: Span<Hva>, most: usize) -> Vec<(Hva, Pfn)> {
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

    pub(super) fn guests_use(&self, pfn: Pfn) -> bool {
        let is_standing = |(index, key): (usize, u64)| {
            self.pages[index].get(key).is_some_and(|given| given.taken.is_none())
        };
        self.owners_of(pfn).into_iter().any(is_standing)
    }

    /// The lent table pages among `pages` frames from `first` on.
    pub(super) fn table_in(&self, first: u64, pages: u64) -> Option<(u64, u64)> {
        let (&table, &lent) = self.tables.range(..first + pages).next_back()?;
        (table + lent > first).then_some((table, lent))
    }
}
