//! A plain model of a VM, which shares no code with the engine.
//!
//! There is one [`Space`] for each address space: its slots, its mappings, and its dirty pages. Each decision looks at
//! all of it.

use super::plain_host::{PlainHost, number};
use super::tables::{Leaf, Tables};
use slat::{Access, Gfn, HostPage, Hva, Level, PAGE_SIZE, Reason, Slot, Span};
use std::collections::{BTreeMap, BTreeSet};

/// Settings of the VM, and properties of its format.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub struct Rules {
    /// Frames of a guest: `1 << frame_bits`.
    pub frame_bits: u32,
    pub levels: Level,
    /// The largest leaf.
    pub largest: Level,
    pub nx_huge_pages: bool,
    pub contexts: bool,
    /// Whether walkers set Accessed and Dirty.
    pub walkers_set_bits: bool,
    /// Whether writes are logged by D bits.
    pub by_bits: bool,
    pub eager: bool,
    pub initially_set: bool,
}

/// The dirty pages of a slot, by number.
#[derive(Clone, Debug)]
pub struct Log {
    pub pages: BTreeSet<u64>,
    /// No harvest has taken any of it: large pages are still large.
    pub untouched: bool,
}

/// Result of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The access succeeds.
    Reached,
    /// The VMM emulates the access.
    Mmio,
    /// The host has no page for it.
    Fails,
}

/// The model of an address space.
#[derive(Debug)]
pub struct Space {
    pub rules: Rules,
    pub slots: BTreeMap<u32, Slot>,
    pub tables: Tables,
    pub logs: BTreeMap<u32, Log>,
}

impl Space {
    pub fn new(rules: Rules) -> Self {
        let tables = Tables::new(rules.levels);
        Self { rules, slots: BTreeMap::new(), tables, logs: BTreeMap::new() }
    }

    pub fn slot_of(&self, gfn: u64) -> Option<Slot> {
        self.slots.values().find(|slot| slot.gfns.contains(Gfn(gfn))).copied()
    }

    /// Returns the frames that map `hvas`, slot by slot: whole pages, even if the range only touches them.
    pub fn behind(&self, hvas: Span<Hva>) -> Vec<Span<Gfn>> {
        let part = |slot: &Slot| {
            let bytes = slot.gfns.len() * PAGE_SIZE;
            let (from, to) = (hvas.start.0.max(slot.hva.0), hvas.end.0.min(slot.hva.0 + bytes));
            let frame = |bytes: u64| slot.gfns.start + bytes;
            (from < to).then(|| {
                let (from, to) = (from - slot.hva.0, to - slot.hva.0);
                Span::new(frame(from / PAGE_SIZE), frame(to.div_ceil(PAGE_SIZE)))
            })
        };
        self.slots.values().filter_map(part).collect()
    }

    /// Models an access, with all of its faults.
    pub fn access(&mut self, plain_host: &PlainHost, gfn: u64, access: Access) -> Outcome {
        if gfn >> self.rules.frame_bits != 0 {
            return Outcome::Mmio;
        }
        loop {
            let done = match self.tables.leaf(gfn) {
                Some((first, leaf)) => self.mapped(plain_host, (first, leaf), gfn, access),
                None => self.missing(plain_host, gfn, access),
            };
            if let Some(outcome) = done {
                return outcome;
            }
        }
    }

    fn mapped(
        &mut self,
        plain_host: &PlainHost,
        (first, leaf): (u64, Leaf),
        gfn: u64,
        access: Access,
    ) -> Option<Outcome> {
        let slot = self.slot_of(gfn).expect("nothing is mapped without a slot");
        let large = leaf.level > Level::K4;
        let executes = !(large && self.rules.nx_huge_pages);
        let allowed = match access {
            Access::Read => true,
            Access::Write => leaf.write,
            Access::Fetch => executes,
        };
        let known = self.tables.leaves.get_mut(&first).unwrap();
        if allowed {
            known.young = true;
            if access == Access::Write {
                self.stored(gfn);
            }
            return Some(Outcome::Reached);
        }
        // Without Accessed bits, a present leaf counts as accessed.
        known.young |= !self.rules.walkers_set_bits;
        if access == Access::Fetch {
            self.split_down(gfn, false);
            return None;
        }
        if large && slot.log_dirty {
            self.split_down(gfn, self.rules.by_bits && leaf.host_write);
        } else if leaf.host_write {
            known.write = true;
        } else if slot.readonly {
            return Some(Outcome::Mmio);
        } else {
            let page = number(slot.hva_of(Gfn(gfn)));
            let mine = leaf.pfn + (gfn - first);
            match plain_host.at_once(page, access) {
                Some(now) if now.pfn == mine && now.level >= leaf.level => {
                    (known.write, known.host_write) = (true, true);
                }
                _ => {
                    let Some(now) = plain_host.in_the_end(page, access) else { return Some(Outcome::Fails) };
                    let mut level = now.level.min(leaf.level);
                    while !self.may_be(&slot, gfn, level) {
                        level = level.down();
                    }
                    let part = Span::sized(Gfn(gfn).base(level), level.pages());
                    self.split_cut(part, |_| true);
                    self.tables.zap(part, false);
                }
            }
        }
        None
    }

    fn missing(&mut self, plain_host: &PlainHost, gfn: u64, access: Access) -> Option<Outcome> {
        let Some(slot) = self.slot_of(gfn) else {
            // An mmio word at the highest level without a slot below caches the answer.
            let mut level = self.tables.lowest(gfn);
            let entry = |level: Level| Span::sized(Gfn(gfn).base(level), level.pages());
            while level > Level::K4 && self.slots.values().any(|slot| slot.gfns.overlaps(&entry(level))) {
                level = level.down();
            }
            self.tables.link_down(gfn, level);
            return Some(Outcome::Mmio);
        };
        if access == Access::Write && slot.readonly {
            return Some(Outcome::Mmio);
        }
        let Some(page) = plain_host.in_the_end(number(slot.hva_of(Gfn(gfn))), access) else {
            return Some(Outcome::Fails);
        };
        let small = self.rules.nx_huge_pages && access == Access::Fetch;
        let mut level = if small { Level::K4 } else { page.level };
        while !self.may_be(&slot, gfn, level) {
            level = level.down();
        }
        let level = level.min(self.tables.lowest(gfn));
        self.tables.link_down(gfn, level);
        let host_write = page.writable && !slot.readonly;
        let logged = slot.log_dirty && !self.rules.by_bits;
        let write = host_write && (!logged || access == Access::Write);
        let first = Gfn(gfn).base(level).0;
        let pfn = slat::Pfn(page.pfn.0 - (gfn - first));
        self.tables.leaves.insert(first, Leaf { level, pfn, write, host_write, young: true });
        None
    }

    /// Returns whether slot and policy allow a page of `level` around `gfn`.
    fn may_be(&self, slot: &Slot, gfn: u64, level: Level) -> bool {
        let pages = level.pages();
        let apart = (slot.hva.0 / PAGE_SIZE).wrapping_sub(slot.gfns.start.0);
        level == Level::K4
            || level <= self.rules.largest
                && !slot.log_dirty
                && apart.is_multiple_of(pages)
                && slot.gfns.covers(&Span::sized(Gfn(gfn).base(level), pages))
    }

    /// Notes a store to `gfn` by the guest or a device.
    pub fn stored(&mut self, gfn: u64) {
        if let Some(slot) = self.slot_of(gfn)
            && let Some(log) = self.logs.get_mut(&slot.id.0)
        {
            log.pages.insert(gfn - slot.gfns.start.0);
        }
    }

    fn split_down(&mut self, gfn: u64, writable: bool) {
        while let Some((first, leaf)) = self.tables.leaf(gfn)
            && leaf.level > Level::K4
        {
            let write = leaf.write || writable && leaf.level == Level::M2;
            self.tables.leaves.insert(first, Leaf { write, ..leaf });
            self.tables.split(first);
        }
    }

    /// Splits every leaf over `gfns` down to `to`. Returns the number of splits.
    pub fn split(&mut self, gfns: Span<Gfn>, to: Level) -> u64 {
        let mut split = 0;
        loop {
            let large = |first: &u64| self.tables.leaves[first].level > to;
            let Some(first) = self.tables.over(gfns).into_iter().find(large) else { return split };
            self.tables.split(first);
            split += 1;
        }
    }

    /// Models an invalidation of `parts`; `now` is the reported page of the host.
    pub fn invalidate(&mut self, parts: &[Span<Gfn>], why: Reason, now: Option<HostPage>) {
        let zaps =
            !matches!(why, Reason::Protect | Reason::WriteProtect | Reason::SoftDirty | Reason::ChangePte);
        let frees = matches!(why, Reason::Unmap | Reason::Remap | Reason::Exit | Reason::Slot);
        for &part in parts {
            self.split_cut(part, |leaf| zaps || stays(leaf, why, now) != Some(leaf));
            if zaps {
                self.tables.zap(part, frees);
                continue;
            }
            for first in self.tables.over(part) {
                let leaf = self.tables.leaves.remove(&first).unwrap();
                // If a large leaf reaches out of the part, the part stays.
                let left = if part.covers(&leaf.span(first)) { stays(leaf, why, now) } else { Some(leaf) };
                if let Some(leaf) = left {
                    self.tables.leaves.insert(first, leaf);
                }
            }
        }
    }

    /// Splits large leaves that reach out of `part` and of which the part `changes`, until none is left.
    fn split_cut(&mut self, part: Span<Gfn>, changes: impl Fn(Leaf) -> bool) {
        let cut = |tables: &Tables, first: u64| {
            let leaf = tables.leaves[&first];
            let inside = first.max(part.start.0);
            let small = Leaf { level: Level::K4, pfn: leaf.pfn + (inside - first), ..leaf };
            !part.covers(&leaf.span(first)) && changes(small)
        };
        while let Some(first) = self.tables.over(part).into_iter().find(|&first| cut(&self.tables, first)) {
            self.tables.split(first);
        }
    }

    /// Write-protects leaves until the next store.
    pub fn write_protect(&mut self, gfns: Span<Gfn>) {
        for first in self.tables.over(gfns) {
            self.tables.leaves.get_mut(&first).unwrap().write = false;
        }
    }

    /// Recovers large leaves from tables. Returns their number.
    pub fn recover(&mut self, plain_host: &PlainHost, gfns: Span<Gfn>) -> u64 {
        // Length that one invalidation covers, or one leaf.
        const STRETCH: u64 = 64 * 512;
        let (mut recovered, mut at) = (0, gfns.start);
        loop {
            let left = Span::new(at, gfns.end);
            let mut candidates = self.tables.links_in(left).into_iter();
            let Some((found, level)) = candidates.find(|&at| self.large_leaf(plain_host, at).is_some())
            else {
                return recovered;
            };
            let end = (Gfn(found) + STRETCH.max(level.pages())).min(gfns.end);
            for (first, level) in self.tables.links_in(Span::new(Gfn(found), end)) {
                if self.tables.links(first, level)
                    && let Some(leaf) = self.large_leaf(plain_host, (first, level))
                {
                    self.tables.recover(first, leaf);
                    recovered += 1;
                }
            }
            at = end;
        }
    }

    /// Returns the large leaf that could replace a table.
    fn large_leaf(&self, plain_host: &PlainHost, (first, level): (u64, Level)) -> Option<Leaf> {
        let slot = self.slot_of(first)?;
        let page = number(slot.hva_of(Gfn(first)));
        let ask = |access| plain_host.at_once(page, access);
        let allowed = level <= Level::G1 && self.may_be(&slot, first, level);
        let now = if allowed { ask(Access::Write).or_else(|| ask(Access::Read)) } else { None };
        let now = now.filter(|now| now.level >= level)?;
        let write = now.writable && !slot.readonly;
        Some(Leaf { level, pfn: now.pfn, write, host_write: write, young: true })
    }

    /// Returns the accessed frames of `gfns` in runs, and clears their accessed state.
    pub fn age(&mut self, gfns: Span<Gfn>) -> Vec<Span<Gfn>> {
        let mut young = Vec::new();
        for first in self.tables.over(gfns) {
            let leaf = self.tables.leaves.get_mut(&first).unwrap();
            if std::mem::take(&mut leaf.young) {
                young.push(leaf.span(first).clamp(&gfns));
            }
        }
        young
    }

    /// Begins a log.
    pub fn begin_log(&mut self, slot: &Slot) {
        let set = self.rules.initially_set;
        let pages = if set { (0..slot.gfns.len()).collect() } else { BTreeSet::new() };
        self.logs.insert(slot.id.0, Log { pages, untouched: set });
    }

    /// Arms the pages of a new log, unless it begins with all pages dirty.
    pub fn arm_all(&mut self, slot: &Slot) {
        if self.rules.initially_set {
            return;
        }
        if self.rules.eager {
            self.split(slot.gfns, Level::K4);
        }
        for first in self.tables.over(slot.gfns) {
            self.arm(first);
        }
    }

    fn arm(&mut self, gfn: u64) {
        if let Some((first, leaf)) = self.tables.leaf(gfn)
            && (leaf.level > Level::K4 || !self.rules.by_bits)
        {
            self.tables.leaves.get_mut(&first).unwrap().write = false;
        }
    }

    /// Notes the first harvest of a log.
    fn touch_log(&mut self, slot: &Slot) {
        let log = self.logs.get_mut(&slot.id.0).unwrap();
        if std::mem::take(&mut log.untouched) && self.rules.eager {
            self.split(slot.gfns, Level::K4);
        }
    }

    /// Harvests a log.
    pub fn harvest(&mut self, slot: &Slot) -> BTreeSet<u64> {
        self.touch_log(slot);
        let pages = std::mem::take(&mut self.logs.get_mut(&slot.id.0).unwrap().pages);
        for page in &pages {
            self.arm(slot.gfns.start.0 + page);
        }
        pages
    }

    /// Cleans some pages of a log. Returns the number of dirty ones.
    pub fn clear(&mut self, slot: &Slot, asked: &BTreeSet<u64>) -> u64 {
        self.touch_log(slot);
        let log = &mut self.logs.get_mut(&slot.id.0).unwrap().pages;
        let cleaned: BTreeSet<_> = log.intersection(asked).copied().collect();
        log.retain(|page| !asked.contains(page));
        for page in if self.rules.by_bits { asked } else { &cleaned } {
            self.arm(slot.gfns.start.0 + page);
        }
        cleaned.len() as u64
    }
}

/// Returns the new leaf after a change of the whole leaf, for a reason that does not zap it.
fn stays(leaf: Leaf, why: Reason, now: Option<HostPage>) -> Option<Leaf> {
    match why {
        Reason::ChangePte => replaced(leaf, now),
        _ => Some(Leaf { write: false, host_write: false, ..leaf }),
    }
}

/// Returns the new leaf after a change of the host's page; only small leaves can stay.
fn replaced(leaf: Leaf, now: Option<HostPage>) -> Option<Leaf> {
    let now = now.filter(|_| leaf.level == Level::K4)?;
    match (leaf.host_write, now.pfn == leaf.pfn) {
        (false, _) => Some(Leaf { pfn: now.pfn, ..leaf }),
        (true, true) if now.writable => Some(leaf),
        (true, true) => Some(Leaf { write: false, host_write: false, ..leaf }),
        (true, false) => None,
    }
}
