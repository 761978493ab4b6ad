//! A bit for each page of a region that was accessed, collected from several tables.

use crate::pages::page_of;
use slat::{AccessedPages, Gfn, Hva, Level, Span};

/// Number of pages in a region.
pub(crate) const PAGES: usize = Level::M2.pages() as usize;

/// Returns the index of a page in its region.
pub(crate) fn index(page: Gfn) -> usize {
    (page.0 - page.base(Level::M2).0) as usize
}

/// A set of accessed pages of one region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct YoungPages([u64; PAGES / 64]);

impl YoungPages {
    /// Adds these pages, which lie in the region.
    pub(crate) fn add(&mut self, pages: Span<Gfn>) {
        self.merge(index(pages.start), AccessedPages::all(pages).bits());
    }

    /// Adds the answer of the primary table.
    pub(crate) fn add_own(&mut self, accessed: &AccessedPages<Gfn>) {
        self.merge(index(accessed.first()), accessed.bits());
    }

    /// Adds the answer of a secondary MMU.
    pub(crate) fn add_secondary(&mut self, accessed: &AccessedPages<Hva>) {
        self.merge(index(page_of(accessed.first())), accessed.bits());
    }

    /// Adds all pages of another set.
    pub(crate) fn add_all(&mut self, other: &Self) {
        self.merge(0, &other.0);
    }

    /// Bits past the end of the region are ignored.
    fn merge(&mut self, first: usize, bits: &[u64; PAGES / 64]) {
        let (words, shift) = (first / 64, first % 64);
        for (word, &bits) in bits.iter().enumerate().filter(|(_, bits)| **bits != 0) {
            for (word, bits) in [(words + word, bits << shift), (words + word + 1, bits >> 1 >> (63 - shift))]
            {
                if let Some(to) = self.0.get_mut(word) {
                    *to |= bits;
                }
            }
        }
    }

    /// Builds a set from a bit for each page.
    pub(crate) fn of(words: [u64; PAGES / 64]) -> Self {
        Self(words)
    }

    /// All pages of a region.
    pub(crate) const ALL: Self = Self([u64::MAX; PAGES / 64]);

    pub(crate) fn words(&self) -> &[u64; PAGES / 64] {
        &self.0
    }

    pub(crate) fn contains(&self, page: Gfn) -> bool {
        self.0[index(page) / 64] & 1 << (index(page) % 64) != 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the indices of the pages, in order.
    pub(crate) fn indices(&self) -> impl Iterator<Item = usize> {
        self.0.into_iter().enumerate().flat_map(|(word, mut left)| {
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                (left != 0).then(|| {
                    left &= left - 1;
                    word * 64 + bit
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_land_where_their_pages_are() {
        let at = |page, len| {
            let mut young = YoungPages::default();
            young.add(Span::sized(Gfn(page), len));
            young.indices().map(|index| index as u64).collect::<Vec<_>>()
        };
        for (first, len) in [(0, 1), (63, 2), (64, 64), (100, 300), (0, 512), (511, 1)] {
            assert_eq!(at(1024 + first, len), (first..first + len).collect::<Vec<_>>(), "{first}, {len}");
        }
        assert_eq!(at(510, 4), [510, 511], "the next region's pages are not this one's");
        let mut both = YoungPages::default();
        both.add(Span::sized(Gfn(3), 1));
        let mut more = YoungPages::default();
        more.add(Span::sized(Gfn(200), 1));
        both.add_all(&more);
        assert!(!both.is_empty() && both.contains(Gfn(512 + 200)) && !both.contains(Gfn(4)));
        assert_eq!(both.indices().collect::<Vec<_>>(), [3, 200]);
    }
}
