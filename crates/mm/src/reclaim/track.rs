//! The reports of an address space to its LRU: pages that come, go, and move. Each report is made under the
//! page's lock, next to the change of the entry. Without an LRU each costs one predictable branch.

use crate::lru::generations::Kind;
use crate::lru::marks::indices;
use crate::lru::region::Mark;
use crate::lru::stats::Counted;
use crate::lru::tiers::of_shadow;
use crate::space::AddressSpace;
use crate::swap::Shadow;
use crate::vma::Vma;
use slat::{Gfn, Hva, Level, PAGE_SIZE, Pfn, Span};

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
