//! AMD NPT: ordinary long-mode paging, walked for the guest (AMD APM volume 2, "Nested Paging").
//!
//! ```text
//! leaf   63  53        51....12  7   6  5  2  1  0
//!        NX  host-     frame     PS  D  A  U  W  P
//!            writable
//! ```
//! A nested walk is a user access, so U is set at every level. The same bits are the host's own long-mode
//! paging for user pages: [`X64`] is what the primary MMU of `slat-mm` is made of.

use super::x86::{ADDRESS, HOST_WRITE, LARGE, address, when};
use crate::addr::{Level, Pfn};
use crate::table::entry::Word;
use crate::table::format::{Access, Format, Leaf, Perms, assert_format};

const PRESENT: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const NO_EXECUTE: u64 = 1 << 63;

/// Long-mode paging with `LEVELS` levels, as a nested table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Npt<const LEVELS: u8>;

/// Four levels: 48 bits of guest-physical address.
pub type Npt4 = Npt<4>;
/// Five levels: 57 bits of guest-physical address.
pub type Npt5 = Npt<5>;
/// The host's own four-level long-mode table: same bits, input addresses of a process.
pub type X64 = Npt<4>;

impl<const LEVELS: u8> Format for Npt<LEVELS> {
    const NAME: &'static str = if LEVELS == 5 { "npt5" } else { "npt4" };
    const LEVELS: u8 = LEVELS;
    const MAX_LEAF: Level = Level::G1;
    const TABLE_MASK: u64 = PRESENT | LARGE;
    const TABLE_BITS: u64 = PRESENT;
    const PRESENT: u64 = PRESENT;
    const ADDRESS: u64 = ADDRESS;
    const WRITE: u64 = WRITE;
    const HOST_WRITE: u64 = HOST_WRITE;
    const ACCESSED: u64 = ACCESSED;
    const DIRTY: u64 = DIRTY;

    #[inline(always)]
    fn link(pfn: Pfn, _level: Level) -> Word {
        Word(address(pfn) | PRESENT | WRITE | USER)
    }

    #[inline(always)]
    fn leaf(leaf: &Leaf, level: Level) -> Word {
        Word(
            address(leaf.pfn)
                | PRESENT
                | USER
                | when(leaf.perms.allows(Access::Write), WRITE)
                | when(!leaf.perms.allows(Access::Fetch), NO_EXECUTE)
                | when(leaf.host_writable, HOST_WRITE)
                | when(leaf.accessed, ACCESSED)
                | when(leaf.dirty, DIRTY)
                | when(level > Level::K4, LARGE),
        )
    }

    #[inline]
    fn read_leaf(word: Word) -> Leaf {
        let has = |bit| word.0 & bit != 0;
        let write = if has(WRITE) { Perms::WRITE } else { Perms::NONE };
        let execute = if has(NO_EXECUTE) { Perms::NONE } else { Perms::EXECUTE };
        Leaf {
            pfn: Self::pfn(word),
            perms: Perms::READ.with(write).with(execute),
            host_writable: has(HOST_WRITE),
            accessed: has(ACCESSED),
            dirty: has(DIRTY),
        }
    }
}

const _: () = {
    assert_format::<Npt4>();
    assert_format::<Npt5>();
    assert!(Npt4::FRAME_BITS + 12 == 48 && Npt5::FRAME_BITS + 12 == 57);
};
