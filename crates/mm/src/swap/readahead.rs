//! Read-ahead: with a page that an access needs, swap reads neighbours that went to the same device, if earlier
//! ones were used.
//!
//! The number is decided per mapping, as in Linux per VMA. It is the number of pages used from the last window
//! plus two, rounded up to a power of two. It is at least half of the last window. If none was used and the
//! page is no neighbour of the last one, only the page is read. The window lies before, behind or around the
//! page, as the last page suggests.
//!
//! A page that was read ahead is **parked**: its entry has the frame, and no MMU maps it. So the first access
//! faults, without device I/O, and is counted. Nothing is evicted for read-ahead: near the limit no page is
//! read ahead.

use crate::pages::pages_of;
use slat::{Gfn, Hva, Span};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of slots. Mappings share a slot if their addresses hash to the same.
const MAPPINGS: usize = 16;
const PAGE_BITS: u32 = 40;
const COUNT_BITS: u32 = 8;

/// Read-ahead state of the mappings of an address space. All of it is a hint.
#[derive(Debug, Default)]
pub(crate) struct Readahead([AtomicU64; MAPPINGS]);

/// State of one mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Last {
    /// The page that an access needed.
    page: Gfn,
    /// Pages read with it, including itself.
    read: u64,
    /// Pages read ahead and used since.
    used: u64,
}

impl Last {
    fn of(word: u64) -> Self {
        let count = |at: u32| word >> at & ((1 << COUNT_BITS) - 1);
        let page = Gfn(word & ((1 << PAGE_BITS) - 1));
        Self { page, read: count(PAGE_BITS), used: count(PAGE_BITS + COUNT_BITS) }
    }

    fn word(self) -> u64 {
        let count = |count: u64| count.min((1 << COUNT_BITS) - 1);
        self.page.0 & ((1 << PAGE_BITS) - 1)
            | count(self.read) << PAGE_BITS
            | count(self.used) << (PAGE_BITS + COUNT_BITS)
    }

    /// Returns the window, of at most `most` pages, to read when `page` is needed.
    fn next(self, page: Gfn, most: u64) -> Span<Gfn> {
        let (is_next, is_before) = (self.page + 1 == page, page + 1 == self.page);
        let wanted = match self.used {
            0 if is_next || is_before => 2,
            0 => 1,
            used => (used + 2).next_power_of_two(),
        };
        let count = wanted.max(self.read / 2).clamp(1, most.max(1));
        let before = match () {
            () if is_next => 0,
            () if is_before => count - 1,
            () => (count - 1) / 2,
        };
        Span::sized(Gfn(page.0.saturating_sub(before)), count)
    }
}

impl Readahead {
    fn of(&self, mapping: Span<Hva>) -> &AtomicU64 {
        let number = pages_of(mapping).start.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.0[number as usize % MAPPINGS]
    }

    /// Returns the window, of at most `most` pages, to read when `page` of a mapping is needed.
    pub(crate) fn window(&self, mapping: Span<Hva>, page: Gfn, most: u64) -> Span<Gfn> {
        let word = self.of(mapping);
        let pages = Last::of(word.load(Relaxed)).next(page, most);
        word.store(Last { page, read: pages.len(), used: 0 }.word(), Relaxed);
        pages.clamp(&pages_of(mapping))
    }

    /// Counts the use of a page of the mapping that was read ahead.
    pub(crate) fn used(&self, mapping: Span<Hva>) {
        let word = self.of(mapping);
        let last = Last::of(word.load(Relaxed));
        word.store(Last { used: last.used + 1, ..last }.word(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs accesses to these pages; returns the window of each access that misses.
    fn reads(pages: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
        let (mut last, mut there, mut reads) = (Last::of(0), Vec::new(), Vec::new());
        for page in pages {
            if there.contains(&page) {
                last = Last::of(Last { used: last.used + 1, ..last }.word());
                continue;
            }
            let window = last.next(Gfn(page), 8);
            last = Last { page: Gfn(page), read: window.len(), used: 0 };
            there.extend((window.start.0..window.end.0).filter(|&other| other != page));
            reads.push((window.start.0, window.len()));
        }
        reads
    }

    #[test]
    fn windows_grow_where_pages_are_used_in_order_and_shrink_where_they_are_not() {
        let forward = reads(1000..1040);
        assert_eq!(forward[..2], [(1000, 1), (1001, 2)]);
        assert!(forward[2..].iter().all(|&(_, pages)| pages >= 2), "{forward:?}");
        assert!(forward.len() < 16, "{forward:?}");
        let scattered = reads((0..40).map(|page| 5000 + page * 97 % 64 * 100));
        assert!(scattered.iter().all(|&(_, pages)| pages == 1), "{scattered:?}");
        let backward = reads((1000..1040).rev());
        assert!(backward.len() < 24 && backward[1] == (1037, 2), "{backward:?}");
    }

    #[test]
    fn each_state_survives_its_word() {
        for last in
            [Last { page: Gfn(0), read: 0, used: 0 }, Last { page: Gfn((1 << 36) - 1), read: 8, used: 255 }]
        {
            assert_eq!(Last::of(last.word()), last);
        }
        assert_eq!(Last::of(Last { page: Gfn(1), read: 1, used: 256 }.word()).used, 255);
    }
}
