//! Contents of pages: checksums and comparisons.
//!
//! Guests may write meanwhile. Each word is loaded once, whole. A wrong checksum of a changing page is
//! harmless: bytes are compared again while no vCPU can write to the page.

use crate::arena::Arena;
use crate::prim::page_is_read;
use slat::{PAGE_SIZE, Pfn};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const WORDS: usize = PAGE_SIZE as usize / size_of::<u64>();
/// Number of independent sums, so that a processor can overlap the multiplications.
const LANES: usize = 4;
/// An odd factor from the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

fn words(arena: &Arena, pfn: Pfn) -> &[AtomicU64; WORDS] {
    // SAFETY: a frame of the arena's mapping, which outlives the borrow; other users of the frame race with
    // these loads like another processor.
    unsafe { &*arena.frame(pfn).cast() }
}

/// A number that every change of one word of the page changes, and nearly every other change.
pub(super) fn checksum(arena: &Arena, pfn: Pfn) -> u64 {
    // Each step is one-to-one in the lane and in the word, so a difference in one word never gets lost.
    page_is_read();
    let mut lanes: [u64; LANES] = [1, 2, 3, 4];
    for group in words(arena, pfn).chunks_exact(LANES) {
        for (lane, word) in lanes.iter_mut().zip(group) {
            *lane = (*lane ^ word.load(Relaxed)).wrapping_mul(FACTOR).rotate_left(29);
        }
    }
    lanes.iter().fold(0, |sum, lane| {
        let sum = (sum ^ lane).wrapping_mul(FACTOR);
        sum ^ sum >> 32
    })
}

/// Whether two pages hold the same bytes.
pub(super) fn equal(arena: &Arena, one: Pfn, other: Pfn) -> bool {
    // The other is one that was read before.
    page_is_read();
    let pairs = words(arena, one).iter().zip(words(arena, other));
    pairs.into_iter().all(|(one, other)| one.load(Relaxed) == other.load(Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use slat::Level;

    #[test]
    fn every_word_counts() {
        let arena = Arena::builder().limit(2 << 20).build().unwrap();
        let pages = [arena.zeroed(Level::K4).unwrap(), arena.zeroed(Level::K4).unwrap()];
        let [one, other] = pages.each_ref().map(crate::held::Held::pfn);
        let zeroes = checksum(&arena, one);
        for word in words(&arena, other) {
            assert!(equal(&arena, one, other) && checksum(&arena, other) == zeroes);
            for bit in [0, 31, 63] {
                word.store(1 << bit, Relaxed);
                assert!(!equal(&arena, one, other));
                assert_ne!(checksum(&arena, other), zeroes);
            }
            word.store(0, Relaxed);
        }
    }
}
