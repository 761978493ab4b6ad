//! `AccessedPages`: the accessed pages of one leaf table.

use crate::addr::{Hva, Position, Span};
use crate::slots::bitmap::{bits, ones};

/// The accessed pages among up to 512 consecutive pages, of guest frames or of host memory.
///
/// ```
/// # use slat::{age::AccessedPages, Gfn, Span};
/// let all = AccessedPages::all(Span::new(Gfn(510), Gfn(513)));
/// assert_eq!(all.pages().collect::<Vec<_>>(), [Gfn(510), Gfn(511), Gfn(512)]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessedPages<A = Hva> {
    first: A,
    len: u32,
    count: u32,
    bits: [u64; 8],
}

impl<A: Position> AccessedPages<A> {
    /// Maximum number of pages in one value.
    pub const MAX_PAGES: u64 = 512;

    /// `count` accessed pages with their bits in `bits`, among `len` pages from `first` on. Bits beyond `len` are
    /// clear.
    pub(crate) fn new(first: A, (len, count): (u32, u32), bits: [u64; 8]) -> Self {
        Self { first, len, count, bits }
    }

    /// All pages of a span, at most 512.
    pub fn all(pages: Span<A>) -> Self {
        let len = (pages.len() / A::PAGE).min(Self::MAX_PAGES) as u32;
        let bits = core::array::from_fn(|word| ones(len.saturating_sub(word as u32 * 64)));
        Self { first: pages.start, len, count: len, bits }
    }

    /// The first of the consecutive pages.
    pub fn first(&self) -> A {
        self.first
    }

    /// Number of consecutive pages, accessed or not.
    #[allow(clippy::len_without_is_empty, reason = "it is about one page at least")]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// One bit for each page, starting with the lowest bit of the first word.
    pub fn bits(&self) -> &[u64; 8] {
        &self.bits
    }

    /// Number of accessed pages.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The accessed pages, in order.
    pub fn pages(&self) -> impl Iterator<Item = A> + use<A> {
        let first = self.first.raw();
        (0..).step_by(64).zip(self.bits).flat_map(move |(word, left)| {
            bits(left).map(move |bit| A::from_raw(first + (word + u64::from(bit)) * A::PAGE))
        })
    }

    /// The same pages, starting at `first`.
    pub(crate) fn at<B: Position>(&self, first: B) -> AccessedPages<B> {
        AccessedPages { first, len: self.len, count: self.count, bits: self.bits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Gfn;
    use alloc::vec::Vec;

    #[test]
    fn bits_are_pages_in_order() {
        let mut bits = [0; 8];
        bits[0] = 0b101;
        bits[7] = 1 << 63;
        let accessed = AccessedPages::new(Hva(0x10_0000), (512, 3), bits);
        let pages: Vec<Hva> = accessed.pages().collect();
        assert_eq!(pages, [Hva(0x10_0000), Hva(0x10_2000), Hva(0x10_0000 + 511 * 4096)]);
        assert_eq!(accessed.count(), 3);
        assert_eq!(accessed.at(Gfn(7)).pages().collect::<Vec<_>>(), [Gfn(7), Gfn(9), Gfn(518)]);
    }

    #[test]
    fn all_of_a_span_is_512_pages_at_most() {
        for len in [1, 63, 64, 65, 511, 512] {
            let all = AccessedPages::all(Span::sized(Gfn(3), len));
            assert_eq!((u64::from(all.len()), u64::from(all.count())), (len, len));
            assert!(all.pages().eq((3..3 + len).map(Gfn)));
        }
        assert_eq!(AccessedPages::all(Span::sized(Gfn(0), 513)).count(), 512);
    }
}
