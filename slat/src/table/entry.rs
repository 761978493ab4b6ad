//! One entry: the atomic cell, its word, and the kinds of absent words.
//!
//! | tag | absent word | meaning |
//! |---|---|---|
//! | 00 | **hole** | maps nothing. Carries the [`Version`] of the last invalidation that covered it. An install is a CAS from the hole that the fault read, allowed only if its version is not newer than the fault's stamp |
//! | 01 | **frozen** | one thread owns the entry for a moment, and its mark is in the word. Other threads' faults retry |
//! | 10 | **mmio** | a hole that also says that no memslot was there as of its version, so a fault need not look one up |
//! | 11 | **withdrawn** | a leaf withdrawn from the hardware to detect the next access. The word keeps the leaf |
//!
//! ```text
//! 63 | 62 ........ 46 | 45 ... 41 | 40 ........ 11 | 10 | 9 .. 5 | 4 3 | 2 1 0
//! 1  | version 51..35 | 1 1 1 1 1 | version 34..5  | 0  |  4..0  | tag | 0 0 0    hole, frozen (mark), mmio
//!
//! 63 |   62 61     |  60   |     59        | 58 57 56 | 55 ............... 12 | 11 .. 5 | 4 3 | 2 1 0
//! 1  | memory type | dirty | host_writable |  x  w  r | frame                 |    0    | 1 1 | 0 0 0    withdrawn
//! ```
//! The fixed bits suit every 64-bit format. Bits 2..0 clear mean not-present to EPT, and bit 0 to all others. Bit 10
//! clear keeps mode-based execution off. Bit 63 set suppresses #VE. Bits 45..41 set point above 62 TiB, where no
//! processor with L1TF can have memory. The version bits are in order of significance, so of two holes, plain or mmio,
//! the newer one is the larger *word*. The check of an install is one integer comparison.
//!
//! A withdrawn word does contain the address of real memory. L1TF may leak that frame at the guest address that maps it.
//! It is the guest's own memory, which the guest could read before and may read again at any time. When the guest loses
//! the frame, the word becomes a hole, as a present leaf does.

use super::leaf::{Leaf, MemoryType, Perms};
use crate::addr::{PAGE_SHIFT, Pfn};
use crate::inject::{Point, strikes};
use crate::sync::prim::{AtomicU64, Ordering, Relaxed, filled, scanned};
pub use crate::version::Version;

/// The contents of an entry at one moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word(pub u64);

/// Set in the mark of a frozen link, beside the frame of its table.
const LINKED: u64 = 1 << (Version::BITS - 1);

const FIXED: u64 = NO_VE | 0b1_1111 << 41;
pub(super) const TAG: u64 = 0b11 << 3;
pub(super) const TAG_HOLE: u64 = 0;
const TAG_FROZEN: u64 = 0b01 << 3;
pub(super) const TAG_MMIO: u64 = 0b10 << 3;
pub(super) const TAG_WITHDRAWN: u64 = 0b11 << 3;

/// The fields of a leaf in a withdrawn word.
mod kept {
    pub(super) const FRAME: u64 = ((1 << 44) - 1) << 12;
    pub(super) const PERMS: u32 = 56;
    pub(super) const HOST_WRITE: u64 = 1 << 59;
    pub(super) const DIRTY: u64 = 1 << 60;
    pub(super) const MEMORY: u32 = 61;
    pub(super) const ALL: u64 = FRAME | 0b111 << PERMS | HOST_WRITE | DIRTY | 0b11 << MEMORY;
}

/// Set in every absent word: suppresses #VE.
const NO_VE: u64 = 1 << 63;
/// Mode-based execution: clear in every absent word.
const USER_EXECUTE: u64 = 1 << 10;

/// Bits that are clear in every absent word. A format's [`Format::PRESENT`](super::Format::PRESENT) must lie within
/// them.
pub(crate) const ALWAYS_CLEAR: u64 = 0b111;

const _: () = {
    let versions = spread(u64::MAX >> (64 - Version::BITS));
    assert!(versions.count_ones() == Version::BITS && gather(versions) == u64::MAX >> (64 - Version::BITS));
    assert!(versions & (FIXED | USER_EXECUTE | TAG | ALWAYS_CLEAR) == 0);
    assert!(kept::ALL.count_ones() == 44 + 3 + 2 + 2, "no two of its fields meet");
    assert!(kept::ALL & (NO_VE | USER_EXECUTE | TAG | ALWAYS_CLEAR) == 0);
};

const fn spread(number: u64) -> u64 {
    (number >> 35) << 46 | (number >> 5 & 0x3fff_ffff) << 11 | (number & 0x1f) << 5
}

pub(super) const fn gather(word: u64) -> u64 {
    (word >> 46 & 0x1_ffff) << 35 | (word >> 11 & 0x3fff_ffff) << 5 | (word >> 5 & 0x1f)
}

impl Word {
    /// The oldest hole, which every fault may fill.
    pub(crate) const OLDEST: Self = Self::hole(Version(0));

    /// Returns a hole last covered by invalidation `version`.
    #[inline(always)]
    pub const fn hole(version: Version) -> Self {
        Self(FIXED | TAG_HOLE | spread(version.0))
    }

    /// Returns a word frozen by the thread with `mark`, which is unique among the threads that freeze at the same time.
    #[inline]
    pub const fn frozen(mark: u64) -> Self {
        Self(FIXED | TAG_FROZEN | spread(mark))
    }

    /// Returns a frozen link to the table in frame `pfn`. The frame is in the word: freezing a later link to another
    /// table makes another word, so no thread thaws what another one froze.
    pub(crate) const fn frozen_link(pfn: Pfn) -> Self {
        Self::frozen(LINKED | pfn.0)
    }

    /// Whether the frozen word with this mark was a link.
    pub(crate) const fn was_link(mark: u64) -> bool {
        mark & LINKED != 0
    }

    /// Returns a hole without a memslot, as of `version`.
    #[inline]
    pub const fn mmio(version: Version) -> Self {
        Self(FIXED | TAG_MMIO | spread(version.0))
    }

    /// Returns `leaf` withdrawn from the hardware until a vCPU accesses it. The Accessed bit is not stored; every
    /// withdrawn leaf is old.
    #[inline]
    pub const fn withdrawn(leaf: &Leaf) -> Self {
        let host_write = if leaf.host_writable { kept::HOST_WRITE } else { 0 };
        let dirty = if leaf.dirty { kept::DIRTY } else { 0 };
        let perms = (leaf.perms.bits() as u64) << kept::PERMS;
        let memory = leaf.memory.bits() << kept::MEMORY;
        Self(
            NO_VE
                | TAG_WITHDRAWN
                | leaf.pfn.0 << PAGE_SHIFT & kept::FRAME
                | perms
                | memory
                | host_write
                | dirty,
        )
    }

    /// Whether the word is a plain hole, and neither present nor another kind of absent word.
    #[inline(always)]
    pub const fn is_hole(self) -> bool {
        self.0 & (TAG | ALWAYS_CLEAR) == TAG_HOLE
    }

    /// Whether the word is a hole without a memslot.
    #[inline]
    pub const fn is_mmio(self) -> bool {
        self.0 & (TAG | ALWAYS_CLEAR) == TAG_MMIO
    }

    /// Whether one thread owns the entry for a moment.
    #[inline]
    pub(crate) const fn is_frozen(self) -> bool {
        self.0 & (TAG | ALWAYS_CLEAR) == TAG_FROZEN
    }

    /// Whether the word is a leaf withdrawn from the hardware.
    #[inline]
    pub const fn is_withdrawn(self) -> bool {
        self.0 & (TAG | ALWAYS_CLEAR) == TAG_WITHDRAWN
    }

    /// Returns the leaf in a withdrawn word. Meaningless for other words.
    #[inline]
    pub const fn withdrawn_leaf(self) -> Leaf {
        Leaf {
            pfn: Pfn((self.0 & kept::FRAME) >> PAGE_SHIFT),
            perms: Perms::from_bits((self.0 >> kept::PERMS) as u8),
            memory: MemoryType::from_bits(self.0 >> kept::MEMORY),
            host_writable: self.0 & kept::HOST_WRITE != 0,
            accessed: false,
            dirty: self.0 & kept::DIRTY != 0,
        }
    }

    /// Returns the version of a hole, plain or mmio.
    #[inline(always)]
    pub(crate) const fn version(self) -> Version {
        Version(gather(self.0))
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
    /// An entry outside any table page.
    #[cfg(all(test, feature = "std", not(shuttle)))]
    pub(crate) fn new(word: Word) -> Self {
        Self(AtomicU64::new(word.0))
    }

    /// Loads the current word.
    #[inline(always)]
    pub fn load(&self) -> Word {
        // Pairs with the Release of `cas`. A walk that sees a link sees the filled table; a walk that sees a hole sees
        // what its invalidation did before.
        let word = Word(self.0.load(order!(link.follow, Acquire)));
        #[cfg(all(test, shuttle))]
        crate::shuttle_tests::looked(word);
        word
    }

    /// Replaces `old` by `new`, or returns the actual word as the error.
    #[inline(always)]
    pub(crate) fn cas(&self, old: Word, new: Word) -> Result<(), Word> {
        #[cfg(test)]
        super::history::writes(self);
        if strikes(Point::Cas) && !old.is_frozen() {
            return Err(self.load());
        }
        // Release publishes a filled table or a frame's contents with the link or leaf to it. Acquire, because after a
        // lost race the caller decides on the found value.
        let (won, lost) = (order!(link.cas, AcqRel), order!(link.lost, Acquire));
        let done = self.0.compare_exchange(old.0, new.0, won, lost).map(drop).map_err(Word);
        #[cfg(test)]
        super::history::wrote();
        done
    }

    /// Sets Accessed and Dirty bits if the entry still holds `seen`, as a hardware walker does.
    #[inline]
    pub(crate) fn touch(&self, seen: Word, bits: u64) -> bool {
        // ORDER(ad-bits): Relaxed is enough. The bits publish nothing; a harvest flushes before it trusts them.
        self.0.compare_exchange(seen.0, seen.0 | bits, Relaxed, Relaxed).is_ok()
    }

    /// Writes a word into a table that no other thread can reach yet.
    #[inline(always)]
    pub(crate) fn fill(&self, word: Word) {
        // The CAS that links the table publishes it.
        filled(&self.0).store(word.0, Relaxed);
        #[cfg(test)]
        super::history::wrote();
    }

    /// Marks an entry of a page that is no longer in any table: see [`inject::GIVEN_BACK`](crate::inject::GIVEN_BACK).
    /// Costs no virtual time.
    #[cfg(explored)]
    pub(crate) fn give_back(&self) {
        // Only the caller reaches the page.
        self.0.free().store(crate::inject::GIVEN_BACK.0, Relaxed);
    }

    /// Loads with Relaxed ordering, for walks that only count.
    #[inline]
    pub fn peek(&self) -> Word {
        // ORDER(ad-bits): Relaxed; nothing follows the value.
        Word(scanned(&self.0).load(Ordering::Relaxed))
    }

    /// Replaces the word unconditionally. For a table whose entries have one writer at a time (a primary MMU under its
    /// page lock) and any number of readers.
    #[inline]
    pub(crate) fn store(&self, word: Word) {
        #[cfg(test)]
        super::history::writes(self);
        // Publishes what is behind the word, as `cas` does.
        self.0.store(word.0, order!(link.store, Release));
        #[cfg(test)]
        super::history::wrote();
    }
}

/// Operations of hardware, of a model of it, or of tests. The engine follows every link that it finds, so the caller is
/// responsible for each word that it writes.
impl Entry {
    /// Sets `bits` if the entry still holds `seen`, as a hardware walker does.
    ///
    /// # Safety
    /// The format's walker sets `bits` in `seen`: they are all or some of [`Format::touch`](super::Format::touch) for a
    /// leaf, and of [`Format::touch_link`](super::Format::touch_link) for a link.
    #[inline]
    pub unsafe fn touch_raw(&self, seen: Word, bits: u64) -> bool {
        self.touch(seen, bits)
    }

    /// Replaces `old` by `new`, or returns the actual word as the error.
    ///
    /// # Safety
    /// As [`store_raw`](Self::store_raw).
    #[inline]
    pub unsafe fn cas_raw(&self, old: Word, new: Word) -> Result<(), Word> {
        self.cas(old, new)
    }

    /// Replaces the word unconditionally.
    ///
    /// # Safety
    /// `word` links no table, or a table page of the same VM or map, which stays allocated while it is linked here. In
    /// a VM's table, the caller also guarantees that the guest may reach what `word` maps.
    #[inline]
    pub unsafe fn store_raw(&self, word: Word) {
        self.store(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Level;
    use crate::near_edges::near_edges;
    use crate::table::format::{Format, Kind};
    use crate::table::formats::{
        Arm64L40, Arm64L48, Arm64NoAd, Ept4, Ept4NoAd, Ept5, Npt4, Npt5, Pae, Sv57x4,
    };
    use proptest::prelude::*;

    /// Any version.
    fn versions() -> impl Strategy<Value = u64> {
        near_edges(0..1 << Version::BITS)
    }

    fn is_absent<F: Format>(word: Word) -> bool {
        !F::is_present(word) && (1..=F::LEVELS).all(|level| !F::is_table(word, Level::new(level).unwrap()))
    }

    /// Whether a walker of any format finds nothing in the word, and no #VE or mode-based execution.
    fn hardware_sees_nothing(word: Word) -> bool {
        is_absent::<Ept4>(word)
            && is_absent::<Ept5>(word)
            && is_absent::<Npt4>(word)
            && is_absent::<Npt5>(word)
            && is_absent::<Pae>(word)
            && is_absent::<Ept4NoAd>(word)
            && is_absent::<Arm64L40>(word)
            && is_absent::<Arm64L48>(word)
            && is_absent::<Arm64NoAd>(word)
            && is_absent::<Sv57x4>(word)
            && word.0 & (NO_VE | USER_EXECUTE) == NO_VE
    }

    fn leaf() -> impl Strategy<Value = Leaf> {
        (near_edges(0..1 << 44), 0u8..32, any::<bool>(), any::<bool>()).prop_map(
            |(pfn, bits, host_writable, dirty)| Leaf {
                pfn: Pfn(pfn),
                perms: Perms::from_bits(bits),
                memory: MemoryType::from_bits(u64::from(bits >> 3)),
                host_writable,
                accessed: false,
                dirty,
            },
        )
    }

    proptest! {
        #[test]
        fn versions_survive_the_layout_and_order_as_words(a in versions(), b in versions()) {
            for level in [Level::K4, Level::M2] {
                prop_assert_eq!(Word::hole(Version(a)).kind::<Ept4>(level), Kind::Hole(Version(a)));
                prop_assert_eq!(Word::mmio(Version(a)).kind::<Ept5>(level), Kind::Mmio(Version(a)));
                prop_assert_eq!(Word::frozen(a).kind::<Npt4>(level), Kind::Frozen(a));
            }
            for (one, other) in [
                (Word::hole(Version(a)), Word::hole(Version(b))),
                (Word::mmio(Version(a)), Word::mmio(Version(b))),
            ] {
                prop_assert_eq!(a.cmp(&b), one.cmp(&other));
            }
            // Between a hole and an mmio hole the newer is also the larger; at equal versions, the mmio hole is larger.
            prop_assert_eq!(a < b, Word::mmio(Version(a)) < Word::hole(Version(b)));
            prop_assert_eq!(a <= b, Word::hole(Version(a)) < Word::mmio(Version(b)));
        }

        #[test]
        fn a_withdrawn_leaf_survives_and_is_present_to_no_walker(leaf in leaf()) {
            let word = Word::withdrawn(&leaf);
            prop_assert_eq!(word.withdrawn_leaf(), leaf);
            prop_assert_eq!(Word::withdrawn(&Leaf { accessed: true, ..leaf }), word);
            prop_assert!(hardware_sees_nothing(word));
            for level in [Level::K4, Level::M2, Level::G1] {
                prop_assert_eq!(word.kind::<Ept4>(level), Kind::Withdrawn);
                prop_assert_eq!(word.kind::<Npt5>(level), Kind::Withdrawn);
            }
        }

        #[test]
        fn an_absent_word_is_one_thing_only(number in versions(), leaf in leaf()) {
            let words = [
                Word::hole(Version(number)),
                Word::mmio(Version(number)),
                Word::withdrawn(&leaf),
                Word::frozen(number),
                Word::frozen_link(Pfn(5)),
            ];
            for (index, word) in words.into_iter().enumerate() {
                prop_assert!(hardware_sees_nothing(word));
                prop_assert_eq!([word.is_hole(), word.is_mmio(), word.is_withdrawn()], [0, 1, 2].map(|i| i == index));
                let points_at_no_memory = word.0 & 0x000f_ffff_ffff_f000 >= 62 << 40;
                prop_assert!(points_at_no_memory || word.is_withdrawn(), "above 62 TiB");
            }
        }
    }

    #[test]
    fn a_present_word_is_not_an_absent_word() {
        let leaf = Leaf {
            pfn: Pfn(0b11 << 3),
            perms: Perms::RX,
            memory: MemoryType::WriteBack,
            host_writable: false,
            accessed: true,
            dirty: false,
        };
        for word in
            [Ept4::leaf(&leaf, Level::K4), Npt4::leaf(&leaf, Level::M2), Ept4::link(Pfn(3), Level::M2)]
        {
            assert!(!word.is_hole() && !word.is_mmio() && !word.is_withdrawn());
        }
    }
}
