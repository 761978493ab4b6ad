//! Arm stage 2, granule of 4 KiB (Arm ARM, "VMSAv8-64 translation table format descriptors", stage 2).
//!
//! ```text
//! leaf   58..57  56      55        54..53  51   50..48  47....12  10  9..8   7..6   5..2   1  0
//!        -       D kept  host-     XN      DBM  -       frame     AF  share  W R    memory *  V
//!                        writable
//! link                                                  frame                              1  V
//! ```
//! `*` is set in a leaf of 4 KiB, and clear in a larger one. Memory is Normal write-back, Normal non-cacheable
//! (write-combining), Device-GRE (uncached) or Device-nGnRE (device); the guest's own attributes can only narrow that.
//! Links allow everything and have no Accessed bit. Up to 39 bits of address need three levels and a root of one page,
//! up to 43 bits a root of 2 to 16 pages ("concatenated"), and more bits four levels.
//!
//! **`AD`**: with `VTCR_EL2.HA` and `HD` set, hardware sets AF. For a store through a leaf with DBM it sets W, which is
//! thus the Dirty bit; DBM is the write permission. A leaf that loses its write permission loses both, and bit 56
//! records that it was dirty. Without `AD`, AF is set in every leaf, W is the write permission, and DBM stays clear.
//!
//! Splitting and recovering pages in place needs `FEAT_BBM` level 2. Without it, allow 4 KiB only
//! ([`max_page`](crate::Builder)).

use super::{read_leaf, when};
use crate::{Access, Format, Leaf, Level, PAGE_SHIFT, Perms, Pfn, Word};

pub(crate) const VALID: u64 = 1 << 0;
pub(crate) const TABLE: u64 = 1 << 1;
const SHARED: u64 = 0b11 << 8;
/// Normal write-back, Normal non-cacheable, Device-GRE, Device-nGnRE.
const MEMORY: [u64; 4] = [0b1111 << 2, 0b0101 << 2, 0b0011 << 2, 0b0001 << 2];
pub(crate) const READ: u64 = 1 << 6;
pub(crate) const STORE: u64 = 1 << 7;
pub(crate) const ACCESSED: u64 = 1 << 10;
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
pub(crate) const DBM: u64 = 1 << 51;
const NO_EXECUTE: u64 = 0b10 << 53;
const HOST_WRITE: u64 = 1 << 55;
const DIRTY_KEPT: u64 = 1 << 56;

/// Stage 2 with `IPA` bits of guest-physical address. `AD`: hardware manages AF and the dirty state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arm64<const IPA: u8, const AD: bool = true>;

/// 39 bits: three levels from one page.
pub type Arm64L39 = Arm64<39>;
/// 40 bits: three levels from two pages.
pub type Arm64L40 = Arm64<40>;
/// 48 bits: four levels.
pub type Arm64L48 = Arm64<48>;
/// 48 bits, `VTCR_EL2.HA` and `HD` clear.
pub type Arm64NoAd = Arm64<48, false>;

// SAFETY: `formats/tests.rs` checks constants, links, leaves and edits.
unsafe impl<const IPA: u8, const AD: bool> Format for Arm64<IPA, AD> {
    const NAME: &'static str = match (IPA, AD) {
        (39, true) => "arm64-39",
        (40, true) => "arm64-40",
        (48, true) => "arm64",
        (48, false) => "arm64-noad",
        _ => "arm64-other",
    };
    const LEVELS: u8 = if IPA <= 43 { 3 } else { 4 };
    const MAX_LEAF: Level = Self::ROOT_LEVEL.down();
    const ROOT_PAGES: usize = if Self::LEVELS == 3 { 1 << IPA.saturating_sub(39) } else { 1 };
    const FRAME_BITS: u32 = IPA as u32 - PAGE_SHIFT;
    const TABLE_MASK: u64 = VALID | TABLE;
    const TABLE_BITS: u64 = VALID | TABLE;
    const PRESENT: u64 = VALID;
    const ADDRESS: u64 = ADDRESS;
    const WRITE: u64 = if AD { DBM } else { STORE };
    const HOST_WRITE: u64 = HOST_WRITE;
    const ACCESSED: u64 = when(AD, ACCESSED);
    const DIRTY: u64 = when(AD, STORE | DIRTY_KEPT);
    const HARDWARE_AD: bool = AD;
    const MEMORY: Option<[u64; 4]> = Some(MEMORY);

    #[inline(always)]
    fn link(pfn: Pfn, _level: Level) -> Word {
        Word(pfn.0 << PAGE_SHIFT & ADDRESS | VALID | TABLE)
    }

    #[inline(always)]
    fn leaf(leaf: &Leaf, level: Level) -> Word {
        let store = leaf.perms.allows(Access::Write);
        let bits = leaf.pfn.0 << PAGE_SHIFT & ADDRESS
            | VALID
            | SHARED
            | when(level == Level::K4, TABLE)
            | when(leaf.perms.allows(Access::Read), READ)
            | when(store, Self::WRITE)
            | when(!leaf.perms.allows(Access::Fetch), NO_EXECUTE)
            | when(leaf.accessed, ACCESSED)
            | when(AD && leaf.dirty, if store { STORE } else { DIRTY_KEPT });
        super::leaf::<Self>(leaf, bits)
    }

    #[inline]
    fn read_leaf(word: Word) -> Leaf {
        let has = |bits| word.0 & bits != 0;
        read_leaf::<Self>(word, Perms::of(has(READ), has(Self::WRITE), !has(NO_EXECUTE)))
    }

    #[inline(always)]
    fn set_write(word: Word, on: bool) -> Word {
        let dirty = when(word.0 & Self::DIRTY != 0, if on { STORE } else { DIRTY_KEPT });
        Word(word.0 & !(DBM | STORE | DIRTY_KEPT) | when(on, Self::WRITE) | dirty)
    }

    #[inline(always)]
    fn touch(access: Access) -> u64 {
        Self::ACCESSED | when(AD && access == Access::Write, STORE)
    }

    #[inline(always)]
    fn touch_link(_level: Level) -> u64 {
        0
    }
}
