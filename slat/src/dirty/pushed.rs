//! One page of a ring, in 16 bytes; many of them, merged into words.
//!
//! ```text
//! 127 .. 120   119 .. 88   87 .. 48             47 .. 0
//! space        slot        serial of its log    page
//! ```
//! The number orders them slot by slot, and by pages in each; a shift says whether two are of one log, or of one word.
//! It names the log, not only the slot: what was left over from a slot which is gone, or whose log was switched off since,
//! says nothing about the slot that has its id now. It names no frame, so a slot may move meanwhile.

use super::bitmap::{Bitmap, WORD};
use crate::slots::{SlotId, SpaceId};

/// One page that a vCPU has written, or may write from now on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Pushed(u128);

/// Bits of a page's number: no slot has as many pages.
const PAGE: u32 = 48;
/// Bits of a serial.
const SERIAL: u32 = 40;

impl Pushed {
    /// Page `page` of the slot that `log` belongs to.
    pub(crate) fn new(space: SpaceId, slot: SlotId, log: &Bitmap, page: u64) -> Self {
        debug_assert!(page >> PAGE == 0);
        let name = u128::from(space.0) << 72 | u128::from(slot.0) << SERIAL | u128::from(serial(log));
        Self(name << PAGE | u128::from(page))
    }

    /// As two words, the upper first.
    pub(super) fn to_words(self) -> [u64; 2] {
        [(self.0 >> 64) as u64, self.0 as u64]
    }

    /// From such.
    pub(super) fn from_words([upper, lower]: [u64; 2]) -> Self {
        Self(u128::from(upper) << 64 | u128::from(lower))
    }

    /// The address space of its slot.
    pub(crate) fn space(self) -> SpaceId {
        SpaceId((self.0 >> 120) as u8)
    }

    pub(crate) fn slot(self) -> SlotId {
        SlotId((self.0 >> (PAGE + SERIAL)) as u32)
    }

    /// Counted from the slot's first.
    pub(crate) fn page(self) -> u64 {
        self.0 as u64 & ((1 << PAGE) - 1)
    }

    /// Whether both are of the same log.
    pub(crate) fn shares_log(&self, other: &Self) -> bool {
        (self.0 ^ other.0) >> PAGE == 0
    }

    /// Whether both are of the same 64 pages of it.
    fn shares_word(&self, other: &Self) -> bool {
        self.0 / u128::from(WORD) == other.0 / u128::from(WORD)
    }

    /// Whether it is of `log`, which its slot has now. 2^40 logs are one a millisecond for thirty years; and should one be
    /// taken for another, it is told of a page too many.
    pub(crate) fn is_of(self, log: &Bitmap) -> bool {
        (self.0 >> PAGE) as u64 & ((1 << SERIAL) - 1) == serial(log) && self.page() < log.pages()
    }
}

/// As much of a log's serial as there is room for.
fn serial(log: &Bitmap) -> u64 {
    log.serial() & ((1 << SERIAL) - 1)
}

/// Merges sorted pages of one log into words: the number of each that has any, and its bits.
///
/// Sorted, not in the order of the stores as KVM has it: a page that was pushed twice is one bit wherever it stood, what
/// is told comes in the order in which bitmaps tell it, and neighbours are armed together.
pub(crate) fn merge(pages: &[Pushed]) -> impl Iterator<Item = (u64, u64)> {
    pages.chunk_by(Pushed::shares_word).map(|pages| {
        (pages[0].page() / WORD, pages.iter().fold(0, |bits, pushed| bits | 1 << (pushed.page() % WORD)))
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    fn log(serial: u64) -> Bitmap {
        Bitmap::new(1000, serial, false).unwrap()
    }

    #[test]
    fn it_says_all_that_was_put_into_it() {
        let last = (1 << PAGE) - 1;
        for (space, slot, serial, page) in [
            (0, 0, 0, 0),
            (u8::MAX, u32::MAX, u64::MAX, last),
            (u8::MAX, 0, 0, 0),
            (0, u32::MAX, 0, 0),
            (0, 0, u64::MAX, 0),
            (0, 0, 0, last),
            (1, 0x1234_5678, 0x12_3456_789a, 999),
        ] {
            let log = log(serial);
            let pushed = Pushed::new(SpaceId(space), SlotId(slot), &log, page);
            assert_eq!((pushed.space(), pushed.slot(), pushed.page()), (SpaceId(space), SlotId(slot), page));
            assert_eq!(pushed.is_of(&log), page < 1000, "no page that the slot does not have");
            assert_eq!(Pushed::from_words(pushed.to_words()), pushed);
        }
    }

    #[test]
    fn it_is_of_the_log_that_it_was_pushed_for() {
        let pushed = Pushed::new(SpaceId(0), SlotId(3), &log(7), 5);
        assert!(pushed.is_of(&log(7)) && !pushed.is_of(&log(8)));
        let late = Pushed::new(SpaceId(0), SlotId(3), &log((1 << SERIAL) + 7), 5);
        assert!(late.is_of(&log((1 << SERIAL) + 7)), "however many there were");
    }

    #[test]
    fn neighbours_become_one_word_whatever_came_between_them() {
        let page = |space, slot, serial, page| Pushed::new(SpaceId(space), SlotId(slot), &log(serial), page);
        let mut pages: Vec<_> =
            [64, 63, 7, 64, 0, 127, 640].iter().map(|&number| page(0, 3, 1, number)).collect();
        pages.extend([page(1, 3, 1, 7), page(0, 3, 2, 7), page(0, 2, 1, 7)]);
        pages.rotate_left(5);
        pages.sort_unstable();
        let logs = pages.chunk_by(Pushed::shares_log);
        let words: Vec<_> = logs.map(|pages| merge(pages).collect::<Vec<_>>()).collect();
        let seven = vec![(0, 1 << 7)];
        let all = vec![(0, 1 << 63 | 1 << 7 | 1), (1, 1 << 63 | 1), (10, 1)];
        assert_eq!(words, [seven.clone(), all, seven.clone(), seven]);
        assert_eq!(merge(&[]).count(), 0);
    }
}
