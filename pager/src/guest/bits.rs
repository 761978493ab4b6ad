//! A bitmap of pages for concurrent threads.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A set of pages.
#[derive(Debug, Default)]
pub(super) struct Bits(Vec<AtomicU64>);

impl Clone for Bits {
    fn clone(&self) -> Self {
        Self(self.0.iter().map(|word| AtomicU64::new(word.load(Ordering::Relaxed))).collect())
    }
}

impl Bits {
    /// Makes an empty set for `pages` pages.
    pub fn new(pages: usize) -> Self {
        Self((0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Makes the set of pages for which `is_in` is true.
    pub fn of(pages: usize, is_in: impl Fn(usize) -> bool) -> Self {
        let bits = Self::new(pages);
        (0..pages).filter(|page| is_in(*page)).for_each(|page| bits.set(page));
        bits
    }

    /// Adds a page, unless it is beyond the pages of this set.
    pub fn set(&self, page: usize) {
        if let Some(word) = self.0.get(page / 64) {
            word.fetch_or(1 << (page % 64), Ordering::Relaxed);
        }
    }

    /// Removes a page. Returns whether the set had it.
    pub fn clear(&self, page: usize) -> bool {
        let bit = 1 << (page % 64);
        self.0[page / 64].fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    pub fn has(&self, page: usize) -> bool {
        self.0.get(page / 64).is_some_and(|word| word.load(Ordering::Relaxed) >> (page % 64) & 1 != 0)
    }

    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.load(Ordering::Relaxed).count_ones() as usize).sum()
    }

    /// Removes and returns all pages.
    pub fn take(&self) -> Self {
        Self(self.0.iter().map(|word| AtomicU64::new(word.swap(0, Ordering::Relaxed))).collect())
    }

    pub fn add(&self, others: &Self) {
        for (word, other) in self.0.iter().zip(&others.0) {
            word.fetch_or(other.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Returns the runs of set pages in a range.
    pub fn runs(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut next = range.start;
        std::iter::from_fn(move || {
            let start = (next..range.end).find(|page| self.has(*page))?;
            next = (start..range.end).find(|page| !self.has(*page)).unwrap_or(range.end);
            Some(start..next)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_set_taken_and_given_back() {
        let bits = Bits::of(200, |page| page % 100 < 3 || page == 199);
        assert_eq!(bits.runs(1..200).collect::<Vec<_>>(), [1..3, 100..103, 199..200]);
        assert!(bits.clear(2) && !bits.clear(2) && !bits.has(2) && !bits.has(5000));
        let taken = bits.take();
        assert_eq!((bits.count(), taken.count()), (0, 6));
        bits.set(7);
        bits.add(&taken);
        assert_eq!(bits.count(), 7);
    }
}
