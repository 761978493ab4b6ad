//! One entry: the atomic cell, the word in it, and what an absent word can be.
//!
//! The walker sees **table | leaf | hole | frozen** and no other case.
//!
//! * A **hole** carries the [`Version`] of the last invalidation that covered it. Installing is a CAS from the
//!   very hole that was read, allowed only where the version is not newer than the fault's stamp.
//! * A **frozen** entry belongs to one thread for a moment: others fault and come back.
//!
//! ```text
//! absent word   63 | 62 ........ 46 | 45 ... 41 | 40 ........ 11 | 10 | 9 .. 5 | 4 3 | 2 1 0
//!               1  | version 51..35 | 1 1 1 1 1 | version 34..5  | 0  |  4..0  | tag | 0 0 0
//! ```
//! The fixed bits serve every 64-bit format: 2..0 clear is not-present to EPT (and bit 0 to all others); 10 clear
//! keeps mode-based execution off; 63 set suppresses #VE; 45..41 set point above 62 TiB, where no processor
//! that has L1TF can have memory. The version lies in order of significance, so of two holes the larger
//! *word* is the newer one: the check of an install is one integer comparison.

use super::format::Format;
use crate::addr::{Level, Pfn};
use crate::sync::prim::{AcqRel, Acquire, AtomicU64, Ordering, Relaxed, Release};

/// The number of an invalidation; zero is before the first. 52 bits: 142 years at a million a second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Version(pub(crate) u64);

impl Version {
    /// Bits in a version.
    pub const BITS: u32 = 52;

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The contents of an entry at one instant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word(pub u64);

/// What a word is, at the level where it was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A link to the table in this frame.
    Table(Pfn),
    /// A mapped page: decode it with [`Format::read_leaf`].
    Leaf,
    /// Nothing mapped; the last invalidation that covered it.
    Hole(Version),
    /// Owned for a moment by the freezer with this mark.
    Frozen(u64),
}

/// The mark of a frozen link; the marks of frozen leaves are less.
pub(crate) const FROZEN_TABLE: u64 = (1 << Version::BITS) - 1;

const FIXED: u64 = 1 << 63 | 0b1_1111 << 41;
const TAG: u64 = 0b11 << 3;
const TAG_HOLE: u64 = 0;
const TAG_FROZEN: u64 = 0b01 << 3;

/// Bits that are clear in every absent word: what a format's [`Format::PRESENT`] must lie within.
pub(crate) const ALWAYS_CLEAR: u64 = 0b111;

const fn spread(number: u64) -> u64 {
    (number >> 35) << 46 | (number >> 5 & 0x3fff_ffff) << 11 | (number & 0x1f) << 5
}

const fn gather(word: u64) -> u64 {
    (word >> 46 & 0x1_ffff) << 35 | (word >> 11 & 0x3fff_ffff) << 5 | (word >> 5 & 0x1f)
}

impl Word {
    /// A hole last covered by invalidation `version`.
    #[inline(always)]
    pub const fn hole(version: Version) -> Self {
        Self(FIXED | TAG_HOLE | spread(version.0))
    }

    /// An entry frozen by whoever holds `mark` (unique among those who freeze at one time).
    #[inline]
    pub const fn frozen(mark: u64) -> Self {
        Self(FIXED | TAG_FROZEN | spread(mark))
    }

    /// An entry above the lowest level, frozen, that linked a table.
    pub(crate) const fn frozen_table() -> Self {
        Self::frozen(FROZEN_TABLE)
    }

    /// Whether this absent word is a hole.
    #[inline(always)]
    pub const fn is_hole(self) -> bool {
        self.0 & (TAG | ALWAYS_CLEAR) == TAG_HOLE
    }

    /// The version of a hole.
    #[inline(always)]
    pub(crate) const fn version(self) -> Version {
        Version(gather(self.0))
    }

    /// What the word is, found at `level` of a table of format `F`.
    #[inline]
    pub fn kind<F: Format>(self, level: Level) -> Kind {
        if F::is_present(self) {
            if F::is_table(self, level) { Kind::Table(F::pfn(self)) } else { Kind::Leaf }
        } else {
            match self.0 & TAG {
                TAG_HOLE => Kind::Hole(self.version()),
                _ => Kind::Frozen(gather(self.0)),
            }
        }
    }
}

impl core::fmt::Debug for Word {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Word({:#018x})", self.0)
    }
}

/// One 64-bit cell of a table page. Other threads, and the hardware, read and write it at any time.
#[derive(Debug)]
#[repr(transparent)]
pub struct Entry(AtomicU64);

impl Entry {
    /// An entry of its own, in no table page.
    #[cfg(all(test, loom))]
    pub(crate) fn new(word: Word) -> Self {
        Self(AtomicU64::new(word.0))
    }

    /// What it holds now.
    #[inline(always)]
    pub fn load(&self) -> Word {
        // ORDER(link): Acquire pairs with the Release of `cas`: whoever sees a link sees the table filled, and
        // whoever sees a hole sees what its invalidation had done before.
        Word(self.0.load(Acquire))
    }

    /// Replaces `old` by `new`, or says what was there instead.
    #[inline(always)]
    pub fn cas(&self, old: Word, new: Word) -> Result<(), Word> {
        // ORDER(link): Release publishes a filled table, or a frame's contents, with the link or leaf to it;
        // Acquire, because a lost race is decided on the value found.
        self.0.compare_exchange(old.0, new.0, AcqRel, Acquire).map(drop).map_err(Word)
    }

    /// Sets Accessed and Dirty bits if the entry still holds `seen`, as a hardware walker does.
    #[inline]
    pub fn touch(&self, seen: Word, bits: u64) -> bool {
        // ORDER(ad-bits): Relaxed is enough: the bits publish nothing; a harvester flushes before it believes them.
        self.0.compare_exchange(seen.0, seen.0 | bits, Relaxed, Relaxed).is_ok()
    }

    /// Writes a word into a table that nobody else can reach yet.
    #[inline(always)]
    pub(crate) fn fill(&self, word: Word) {
        // ORDER(link): Relaxed; the CAS that links the table publishes it.
        self.0.store(word.0, Relaxed);
    }

    /// Loads with the ordering given, for walks that only count.
    #[inline]
    pub fn peek(&self) -> Word {
        // ORDER(ad-bits): Relaxed; nothing is followed from the value.
        Word(self.0.load(Ordering::Relaxed))
    }

    /// Replaces whatever is there, for a table whose entries have one writer at a time (a primary MMU under
    /// its page lock) and any number of readers.
    #[inline]
    pub fn store(&self, word: Word) {
        // ORDER(link): Release, as in `cas`.
        self.0.store(word.0, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::formats::{Ept4, Npt4};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn versions_survive_the_layout_and_order_as_words(a in 0u64..1 << 52, b in 0u64..1 << 52) {
            for level in [Level::K4, Level::M2] {
                prop_assert_eq!(Word::hole(Version(a)).kind::<Ept4>(level), Kind::Hole(Version(a)));
                prop_assert_eq!(Word::frozen(a).kind::<Npt4>(level), Kind::Frozen(a));
            }
            prop_assert_eq!(a < b, Word::hole(Version(a)) < Word::hole(Version(b)));
        }
    }

    #[test]
    fn absent_words_are_told_apart_and_point_at_no_memory() {
        let hole = Word::hole(Version(0));
        assert!(hole.is_hole() && !Word::frozen(0).is_hole());
        assert!(hole.0 & 0x000f_ffff_ffff_f000 >= 62 << 40, "above 62 TiB");
        assert_eq!(Word::hole(Version((1 << 52) - 1)).0 & (1 << 10 | 0b111), 0);
    }
}
