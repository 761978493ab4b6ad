//! Marks of pages that come, go, and move, with the counts of their generations. The caller holds the page's lock.

use super::Lru;
use super::generations::Kind;
use super::region::{Mark, index};
use super::stats::Counted;
use super::tiers::went_lately;
use crate::nodes::Node;
use slat::{Gfn, Level, Span};
use std::ops::Range;

impl Lru {
    pub(crate) fn mark(&self, page: Gfn) -> Option<Mark> {
        self.regions.with(page, |region| region.get(index(page))).flatten()
    }

    /// Counts a refault of a page that was evicted while `oldest` was the oldest generation; returns its tier.
    /// A page that was evicted `MAX_GENS` or more generations ago counts as new.
    pub(crate) fn came_back(&self, oldest: u64, (kind, tier): (Kind, u8), node: Node) -> u8 {
        self.counters.add(Counted::Refaults, 1);
        let now = self.generations.min_seq(node, kind);
        if !went_lately(oldest, now) {
            return 0;
        }
        self.tiers.refaulted(kind, tier);
        tier
    }

    #[cold]
    pub(crate) fn enter(&self, page: Gfn, level: Level, node: Node, kind: Kind) {
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
    pub(crate) fn leave(&self, page: Gfn, level: Level) {
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
    pub(crate) fn change(&self, pages: Span<Gfn>, mut to: impl FnMut(Mark) -> Mark) {
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
    pub(crate) fn move_to(&self, from: Gfn, to: Gfn, level: Level) {
        for (from, to) in (0..level.pages()).map(|page| (from + page, to + page)) {
            if let Some(mark) = self.regions.with(from, |region| region.set(index(from), None)).flatten() {
                self.regions.with_new(to, |region| region.set(index(to), Some(mark)));
            }
        }
    }
}

/// Returns the indices of these pages in their region.
pub(crate) fn indices(pages: Span<Gfn>) -> Range<usize> {
    let first = index(pages.start);
    first..first + pages.len() as usize
}
