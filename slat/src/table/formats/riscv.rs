//! RISC-V G-stage paging, `Sv39x4`, `Sv48x4` and `Sv57x4` (RISC-V privileged manual, "Hypervisor extension").
//!
//! ```text
//! leaf   63  62..61  60..54  53....10  9       8         7  6  5  4  3  2  1  0
//!        -   PBMT    -       frame     device  host-     D  A  -  U  X  W  R  V
//!                                              writable
//! link                       frame                          all else clear    V
//! ```
//! PBMT is that of `Svpbmt`, enabled in `menvcfg`: the platform's type for the address (write-back), NC
//! (write-combining), or IO (uncached and device; bit 9 distinguishes the two). Processors without it have only
//! write-back.
//!
//! An entry with V links a table if R, W and X are clear. To this stage, every guest access is a user access. Addresses
//! have two bits more than in the host's own modes, and the root has four pages for them.
//!
//! **`AD`**: hardware sets A and D (`Svadu`, enabled in `menvcfg` or `henvcfg`). Without (`Svade`), an access through a
//! leaf with A clear faults, and so does a store through one with D clear. A present leaf then has A, and D if it is
//! writable; a leaf that has not been accessed is withdrawn ([`Format::HARDWARE_AD`]).

use super::{read_leaf, when};
use crate::{Access, Format, Leaf, Level, Perms, Pfn, Word};

pub(crate) const VALID: u64 = 1 << 0;
pub(crate) const READ: u64 = 1 << 1;
pub(crate) const WRITE: u64 = 1 << 2;
pub(crate) const EXECUTE: u64 = 1 << 3;
pub(crate) const USER: u64 = 1 << 4;
pub(crate) const ACCESSED: u64 = 1 << 6;
pub(crate) const DIRTY: u64 = 1 << 7;
const HOST_WRITE: u64 = 1 << 8;
/// The platform's type, NC, IO, and IO with a software bit.
const MEMORY: [u64; 4] = [0, 1 << 61, 2 << 61, 2 << 61 | 1 << 9];
/// The lowest bit of the frame number.
const FRAME: u32 = 10;
const ADDRESS: u64 = (1 << 44) - 1 << FRAME;

/// G-stage paging with `LEVELS` levels. `AD`: hardware sets A and D.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RiscV<const LEVELS: u8, const AD: bool = true>;

/// Three levels: 41 bits of guest-physical address.
pub type Sv39x4 = RiscV<3>;
/// Four levels: 50 bits.
pub type Sv48x4 = RiscV<4>;
/// Five levels: 59 bits.
pub type Sv57x4 = RiscV<5>;
/// Three levels; faults supply A and D.
pub type Sv39x4NoAd = RiscV<3, false>;

// SAFETY: `formats/tests.rs` checks constants, links, leaves and edits.
unsafe impl<const LEVELS: u8, const AD: bool> Format for RiscV<LEVELS, AD> {
    const NAME: &'static str = match (LEVELS, AD) {
        (3, true) => "sv39x4",
        (4, true) => "sv48x4",
        (_, true) => "sv57x4",
        (3, false) => "sv39x4-noad",
        (4, false) => "sv48x4-noad",
        (_, false) => "sv57x4-noad",
    };
    const LEVELS: u8 = LEVELS;
    const MAX_LEAF: Level = if LEVELS == 3 { Level::M2 } else { Level::G1 };
    const ROOT_PAGES: usize = 4;
    const TABLE_MASK: u64 = VALID | READ | WRITE | EXECUTE;
    const TABLE_BITS: u64 = VALID;
    const PRESENT: u64 = VALID;
    const ADDRESS: u64 = ADDRESS;
    const WRITE: u64 = WRITE;
    const HOST_WRITE: u64 = HOST_WRITE;
    const ACCESSED: u64 = when(AD, ACCESSED);
    const DIRTY: u64 = when(AD, DIRTY);
    const HARDWARE_AD: bool = AD;
    const MEMORY: Option<[u64; 4]> = Some(MEMORY);

    #[inline(always)]
    fn link(pfn: Pfn, _level: Level) -> Word {
        Word(pfn.0 << FRAME & ADDRESS | VALID)
    }

    #[inline(always)]
    fn leaf(leaf: &Leaf, _level: Level) -> Word {
        let write = leaf.perms.allows(Access::Write);
        let bits = leaf.pfn.0 << FRAME & ADDRESS
            | VALID
            | USER
            | when(leaf.perms.allows(Access::Read), READ)
            | when(write, WRITE)
            | when(leaf.perms.allows(Access::Fetch), EXECUTE)
            | when(leaf.accessed, ACCESSED)
            | when(if AD { leaf.dirty } else { write }, DIRTY);
        super::leaf::<Self>(leaf, bits)
    }

    #[inline]
    fn read_leaf(word: Word) -> Leaf {
        let has = |bit| word.0 & bit != 0;
        read_leaf::<Self>(word, Perms::of(has(READ), has(WRITE), has(EXECUTE)))
    }

    /// If hardware does not set D, D equals W.
    #[inline(always)]
    fn set_write(word: Word, on: bool) -> Word {
        let bits = if AD { WRITE } else { WRITE | DIRTY };
        Word(word.0 & !bits | when(on, bits))
    }

    #[inline(always)]
    fn touch_link(_level: Level) -> u64 {
        0
    }

    #[inline(always)]
    fn pfn(word: Word) -> Pfn {
        Pfn((word.0 & ADDRESS) >> FRAME)
    }
}
