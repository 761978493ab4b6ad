//! Which pages eviction looks at next: each node and kind has a hand that goes round the regions.

use super::Lru;
use super::generations::Kind;
use super::region::{Mark, PAGES, index};
use super::young::YoungPages;
use crate::nodes::Node;
use slat::{Gfn, Level, Span};

impl Lru {
    /// Drops empty oldest generations, and lets the tier counts of their kind fade.
    pub(crate) fn pass_by_empty(&self, node: Node, can_swap: bool) {
        let oldest = || Kind::ALL.map(|kind| self.generations.min_seq(node, kind));
        let before = oldest();
        self.generations.pass_by_empty(node, can_swap);
        for (kind, (before, after)) in Kind::ALL.into_iter().zip(before.into_iter().zip(oldest())) {
            if before != after {
                self.tiers.fade(kind);
            }
        }
    }

    /// Returns the kind whose oldest generation is the oldest; between equals, the kind that refaults less.
    pub(crate) fn first_to_go(
        &self,
        node: Node,
        kinds: impl Iterator<Item = Kind>,
        swappiness: u8,
    ) -> Option<Kind> {
        let later = if self.tiers.files_go_first(swappiness) { Kind::Anon } else { Kind::File };
        kinds.min_by_key(|&kind| (self.generations.min_seq(node, kind), kind == later))
    }

    /// Whether a pass found any page of an entry accessed while the page lock was taken. Clears that record.
    pub(crate) fn was_found_late(&self, entry: Span<Gfn>) -> bool {
        let mut asked = YoungPages::default();
        asked.add(entry);
        let late = self.regions.with(entry.start, |region| region.take_late(&asked));
        late.is_some_and(|late| !late.is_empty())
    }

    /// Returns up to `most` pages of the oldest generation, in order, from one region, starting at the hand.
    /// Takes no page lock, so the caller checks them again. Empty if a whole round finds none.
    pub(crate) fn choose(&self, node: Node, kind: Kind, most: u64) -> Vec<Gfn> {
        let mut hand = self.hands[usize::from(node.0)][kind as usize].lock();
        let oldest = self.generations.min_seq(node, kind);
        let (begin, mut wrapped) = (*hand, false);
        loop {
            let Some((first, region)) = self.regions.next(hand.base(Level::M2)) else {
                if std::mem::replace(&mut wrapped, true) {
                    return Vec::new();
                }
                *hand = Gfn(0);
                continue;
            };
            if wrapped && first > begin {
                return Vec::new();
            }
            let is_old = |index: &usize| {
                region
                    .get(*index)
                    .is_some_and(|mark| (mark.node, mark.kind) == (node, kind) && mark.seq <= oldest)
            };
            let from = if first < *hand { index(*hand) } else { 0 };
            let found: Vec<Gfn> =
                (from..PAGES).filter(is_old).take(most as usize).map(|index| first + index as u64).collect();
            *hand = found.last().map_or(first + Level::M2.pages(), |&last| last + 1);
            if !found.is_empty() {
                return found;
            }
        }
    }

    /// Moves pages that stay although they are old to the next generation; returns how many. The caller holds
    /// the page lock.
    pub(crate) fn pass_over(&self, pages: Span<Gfn>) -> u64 {
        let mut passed = 0;
        self.change(pages, |mark| {
            passed += 1;
            let oldest = self.generations.min_seq(mark.node, mark.kind);
            Mark { seq: mark.seq.max(oldest + 1), ..mark }
        });
        passed
    }
}
