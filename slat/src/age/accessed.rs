//! `AccessedPages`: what one leaf table says.

use crate::addr::{Hva, Position, Span};
use crate::slots::bitmap::bits;

/// Pages that were accessed, among up to 512 that follow one another: of guest frames, or of host memory.
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
    /// Pages in one of these at most.
    pub const MOST: u64 = 512;

    /// The `count` with a bit in `bits`, of the pages from `first` on; bits past `len` pages are clear.
    pub(crate) fn new(first: A, (len, count): (u32, u32), bits: [u64; 8]) -> Self {
        Self { first, len, count, bits }
    }

    /// All pages of a span, of which there are at most 512.
    pub fn all(pages: Span<A>) -> Self {
        let len = (pages.len() / A::PAGE).min(Self::MOST) as u32;
        let bits = core::array::from_fn(|word| ones(len.saturating_sub(word as u32 * 64)));
        Self { first: pages.start, len, count: len, bits }
    }

    /// The first of the pages that it is about.
    pub fn first(&self) -> A {
        self.first
    }

    /// How many pages it is about.
    #[allow(clippy::len_without_is_empty, reason = "it is about one page at least")]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// A bit for each page, the lowest of the first word for the first.
    pub fn bits(&self) -> &[u64; 8] {
        &self.bits
    }

    /// How many were accessed.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Those that were accessed, in order.
    pub fn pages(&self) -> impl Iterator<Item = A> + use<A> {
        let first = self.first.raw();
        (0..).step_by(64).zip(self.bits).flat_map(move |(word, left)| {
            bits(left).map(move |bit| A::from_raw(first + (word + u64::from(bit)) * A::PAGE))
        })
    }

    /// The same pages, elsewhere.
    pub(crate) fn at<B: Position>(&self, first: B) -> AccessedPages<B> {
        AccessedPages { first, len: self.len, count: self.count, bits: self.bits }
    }
}

/// A word with its lowest `count` bits set; all of them from 64 on.
pub(super) const fn ones(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
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
