//! AMD NPT: ordinary long-mode paging, walked for the guest (AMD APM volume 2, "Nested Paging").
//!
//! ```text
//! leaf   63  53        51....12  7   6  5  4    3    2  1  0
//!        NX  host-     frame     PS  D  A  PCD  PWT  U  W  P
//!            writable
//! ```
//! A nested walk is a user access, so U is set at every level. The same bits are the host's own long-mode
//! paging for user pages: [`X64`] is what the primary MMU of `slat-mm` is made of.

use super::paging::{self, ACCESSED, DIRTY, MEMORY, PRESENT, USER, WRITE};
use super::x86::{ADDRESS, HOST_WRITE, LARGE, address};
use crate::addr::{Level, Pfn};
use crate::table::entry::Word;
use crate::table::format::{Format, Leaf, assert_format};

/// Long-mode paging with `LEVELS` levels, as a nested table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Npt<const LEVELS: u8>;

/// Four levels: 48 bits of guest-physical address.
pub type Npt4 = Npt<4>;
/// Five levels: 57 bits of guest-physical address.
pub type Npt5 = Npt<5>;
/// The host's own four-level long-mode table: same bits, input addresses of a process.
pub type X64 = Npt<4>;

// SAFETY: `formats/tests.rs` checks links, leaves and edits; the foot of this file checks the constants.
unsafe impl<const LEVELS: u8> Format for Npt<LEVELS> {
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
    const MEMORY: Option<[u64; 4]> = Some(MEMORY);

    #[inline(always)]
    fn link(pfn: Pfn, _level: Level) -> Word {
        Word(address(pfn) | PRESENT | WRITE | USER)
    }

    #[inline(always)]
    fn leaf(leaf: &Leaf, level: Level) -> Word {
        paging::leaf::<Self>(leaf, level)
    }

    #[inline]
    fn read_leaf(word: Word) -> Leaf {
        paging::read_leaf::<Self>(word)
    }
}

const _: () = {
    assert_format::<Npt4>();
    assert_format::<Npt5>();
    assert!(Npt4::FRAME_BITS + 12 == 48 && Npt5::FRAME_BITS + 12 == 57);
};
