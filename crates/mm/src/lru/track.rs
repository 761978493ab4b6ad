//! The reports of an address space to its LRU: pages that come, go, and move. Each report is made under the
//! page's lock, next to the change of the entry. Without an LRU each costs one predictable branch.

use super::Lru;
use super::generations::Kind;
use super::region::{Mark, index};
use super::stats::Counted;
use super::tiers::{of_shadow, went_lately};
use crate::numa::Node;
use crate::space::AddressSpace;
use crate::swap::Shadow;
use crate::vma::Vma;
use slat::{Gfn, Hva, Level, PAGE_SIZE, Pfn, Span};
use std::ops::Range;

impl Kind {
    /// Kind of the pages that a mapping brings in, except copies of a file's pages.
    pub(crate) fn of(vma: &Vma) -> Self {
        if vma.is_shared() { Self::File } else { Self::Anon }
    }
}

impl AddressSpace {
    /// Adds a page, to the youngest generation, since a thread is about to use it.
    #[inline]
    pub(crate) fn lru_enter(&self, page: Gfn, level: Level, pfn: Pfn, kind: Kind) {
        if let Some(lru) = &self.lru {
            self.charge(level, pfn, kind);
            lru.enter(page, level, self.arena.node_of(pfn), kind);
        }
    }

    /// Charges the page to the group, if it is not charged yet.
    pub(crate) fn charge(&self, level: Level, pfn: Pfn, kind: Kind) {
        if let Some(member) = &self.member {
            self.arena.charge(Span::sized(pfn, level.pages()), member.owner(), kind == Kind::File);
        }
    }

    /// Removes a page.
    #[inline]
    pub(crate) fn lru_leave(&self, page: Gfn, level: Level) {
        if let Some(lru) = &self.lru {
            lru.leave(page, level);
        }
    }

    /// Forgets evicted pages at these addresses; they cannot come back, since the caller empties them.
    pub(crate) fn lru_forget(&self, pages: Span<Gfn>) {
        let Some(lru) = &self.lru else { return };
        let mut at = pages.start.base(Level::M2);
        while let Some((first, region)) = lru.regions.next(at).filter(|&(first, _)| first < pages.end) {
            at = first + Level::M2.pages();
            let _lock = self.lock_region(first);
            region.forget_gone(indices(Span::new(first, at).clamp(&pages)));
        }
    }

    /// Records that a page has another frame; it keeps its age. `kind` changes its kind.
    #[inline]
    pub(crate) fn lru_replace(&self, page: Gfn, level: Level, pfn: Pfn, kind: Option<Kind>) {
        if let Some(lru) = &self.lru {
            self.charge(level, pfn, kind.unwrap_or_else(|| self.lru_kind(page)));
            let node = self.arena.node_of(pfn);
            lru.change(Span::sized(page, level.pages()), |mark| Mark {
                node,
                kind: kind.unwrap_or(mark.kind),
                ..mark
            });
        }
    }

    /// Records that a page is at another address; it keeps its age. The caller holds both page locks.
    #[inline]
    pub(crate) fn lru_move(&self, from: Gfn, to: Gfn, level: Level) {
        if let Some(lru) = &self.lru {
            lru.move_to(from, to, level);
        }
    }

    /// Records that an evicted page was read back at a fault; its entry held `shadow`.
    pub(crate) fn lru_refaulted(&self, page: Gfn, shadow: Shadow) {
        let Some(lru) = self.lru() else { return };
        let (oldest, tier) = of_shadow(shadow);
        lru.change(Span::sized(page, 1), |mark| {
            let tier = lru.came_back(oldest, (mark.kind, tier), mark.node);
            Mark { tier, ..mark }
        });
    }

    /// Records the use of an evicted page that was read ahead.
    pub(crate) fn lru_used_ahead(&self) {
        if let Some(lru) = self.lru() {
            lru.counters.add(Counted::Refaults, 1);
        }
    }

    /// Returns the kind of the page at `page`; [`Kind::Anon`] without an LRU.
    pub(crate) fn lru_kind(&self, page: Gfn) -> Kind {
        self.lru().and_then(|lru| lru.mark(page)).map_or(Kind::Anon, |mark| mark.kind)
    }

    /// Returns the generation of the page at `hva`, if one is present.
    pub fn generation(&self, hva: Hva) -> Option<u64> {
        let lru = self.lru()?;
        let mark = lru.mark(Gfn(hva.0 / PAGE_SIZE))?;
        Some(mark.seq.max(lru.generations.min_seq(mark.node, mark.kind)))
    }
}

impl Lru {
    pub(super) fn mark(&self, page: Gfn) -> Option<Mark> {
        self.regions.with(page, |region| region.get(index(page))).flatten()
    }

    /// Counts a refault of a page that was evicted while `oldest` was the oldest generation; returns its tier.
    /// A page that was evicted `MAX_GENS` or more generations ago counts as new.
    fn came_back(&self, oldest: u64, (kind, tier): (Kind, u8), node: Node) -> u8 {
        self.counters.add(Counted::Refaults, 1);
        let now = self.generations.min_seq(node, kind);
        if !went_lately(oldest, now) {
            return 0;
        }
        self.tiers.refaulted(kind, tier);
        tier
    }

    #[cold]
    fn enter(&self, page: Gfn, level: Level, node: Node, kind: Kind) {
        self.regions.with_new(page, |region| {
            let mut counters = self.generations.counters();
            let mut mark = Mark { seq: counters.max_seq(), node, kind, tier: 0 };
            if let Some(gone) = region.gone(index(page)) {
                mark.tier = self.came_back(gone.seq, (kind, gone.tier), node);
            }
            for index in indices(Span::sized(page, level.pages())) {
                let before = region.set(index, Some(mark));
                debug_assert!(before.is_none(), "{page:?} was there already");
            }
            counters.add(node, kind, mark.seq, level.pages() as i64);
        });
        self.charge.add_resident(level.pages() as i64);
    }

    #[cold]
    fn leave(&self, page: Gfn, level: Level) {
        let mut left = 0;
        self.regions.with(page, |region| {
            let mut counters = self.generations.counters();
            for mark in indices(Span::sized(page, level.pages())).filter_map(|index| region.set(index, None))
            {
                counters.add(mark.node, mark.kind, mark.seq, -1);
                left += 1;
            }
        });
        self.charge.add_resident(-left);
    }

    /// Changes the marks of those of these pages of one region that are present.
    #[cold]
    pub(super) fn change(&self, pages: Span<Gfn>, mut to: impl FnMut(Mark) -> Mark) {
        self.regions.with(pages.start, |region| {
            let mut counters = self.generations.counters();
            for index in indices(pages) {
                if let Some(old) = region.get(index) {
                    let new = to(old);
                    region.update(index, new);
                    counters.add(old.node, old.kind, old.seq, -1);
                    counters.add(new.node, new.kind, new.seq, 1);
                }
            }
        });
    }

    #[cold]
    fn move_to(&self, from: Gfn, to: Gfn, level: Level) {
        for (from, to) in (0..level.pages()).map(|page| (from + page, to + page)) {
            if let Some(mark) = self.regions.with(from, |region| region.set(index(from), None)).flatten() {
                self.regions.with_new(to, |region| region.set(index(to), Some(mark)));
            }
        }
    }
}

/// Returns the indices of these pages in their region.
fn indices(pages: Span<Gfn>) -> Range<usize> {
    let first = index(pages.start);
    first..first + pages.len() as usize
}
