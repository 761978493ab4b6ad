//! Intel EPT, four or five levels, with Accessed and Dirty bits or without (Intel SDM volume 3, "EPT paging
//! structures").
//!
//! ```text
//! leaf   63        53        51....12  9  8  7   6    5..3  2 1 0
//!        suppress  host-     frame     D  A  PS  IPAT type  X W R
//!        #VE       writable
//! ```
//! | memory type | type | IPAT | effective, with the guest's own PAT |
//! |---|---|---|---|
//! | write-back | 6 | 0 | the guest's |
//! | write-combining | 1 | 0 | write-combining; uncached where the guest says so |
//! | uncached | 0 | 0 | uncached; write-combining where the guest says so |
//! | device | 0 | 1 | uncached |
//!
//! Processors before Haswell have no A and D, and bit 6 of the EPT pointer leaves them unused elsewhere: then the two
//! bits are ignored, nobody sets them, and what has not been accessed is not present ([`Format::HARDWARE_AD`]).

use super::x86::{ADDRESS, HOST_WRITE, LARGE, address, when};
use crate::addr::{Level, Pfn};
use crate::table::entry::Word;
use crate::table::format::{Access, Format, Leaf, Perms, assert_format};

const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const EXECUTE: u64 = 1 << 2;
const IGNORE_PAT: u64 = 1 << 6;
/// Write-back, write-combining, uncached, and the last whatever the guest says.
const MEMORY: [u64; 4] = [6 << 3, 1 << 3, 0, IGNORE_PAT];
const ACCESSED: u64 = 1 << 8;
const DIRTY: u64 = 1 << 9;

/// EPT with `LEVELS` levels; `AD`: Accessed and Dirty are enabled in the EPT pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ept<const LEVELS: u8, const AD: bool = true>;

/// Four levels: 48 bits of guest-physical address.
pub type Ept4 = Ept<4>;
/// Five levels: 57 bits of guest-physical address.
pub type Ept5 = Ept<5>;
/// Four levels, by a pointer without the enable of Accessed and Dirty.
pub type Ept4NoAd = Ept<4, false>;

// SAFETY: `formats/tests.rs` checks links, leaves and edits; the foot of this file checks the constants.
unsafe impl<const LEVELS: u8, const AD: bool> Format for Ept<LEVELS, AD> {
    const NAME: &'static str = match (LEVELS, AD) {
        (5, true) => "ept5",
        (5, false) => "ept5-noad",
        (_, true) => "ept4",
        (_, false) => "ept4-noad",
    };
    const LEVELS: u8 = LEVELS;
    const MAX_LEAF: Level = Level::G1;
    const TABLE_MASK: u64 = READ | LARGE;
    const TABLE_BITS: u64 = READ;
    const PRESENT: u64 = READ | WRITE | EXECUTE;
    const ADDRESS: u64 = ADDRESS;
    const WRITE: u64 = WRITE;
    const HOST_WRITE: u64 = HOST_WRITE;
    const ACCESSED: u64 = when(AD, ACCESSED);
    const DIRTY: u64 = when(AD, DIRTY);
    const HARDWARE_AD: bool = AD;
    const MEMORY: Option<[u64; 4]> = Some(MEMORY);

    #[inline(always)]
    fn link(pfn: Pfn, _level: Level) -> Word {
        Word(address(pfn) | READ | WRITE | EXECUTE)
    }

    #[inline(always)]
    fn leaf(leaf: &Leaf, level: Level) -> Word {
        if !AD && !leaf.accessed {
            return Word::tracked(leaf);
        }
        Word(
            address(leaf.pfn)
                | Self::memory_bits(leaf.memory)
                | when(leaf.perms.allows(Access::Read), READ)
                | when(leaf.perms.allows(Access::Write), WRITE)
                | when(leaf.perms.allows(Access::Fetch), EXECUTE)
                | when(leaf.host_writable, HOST_WRITE)
                | when(leaf.accessed, Self::ACCESSED)
                | when(leaf.dirty, Self::DIRTY)
                | when(level > Level::K4, LARGE),
        )
    }

    #[inline]
    fn read_leaf(word: Word) -> Leaf {
        let has = |bit| word.0 & bit != 0;
        Leaf {
            pfn: Self::pfn(word),
            perms: Perms::of(has(READ), has(WRITE), has(EXECUTE)),
            memory: Self::memory_type(word),
            host_writable: has(HOST_WRITE),
            accessed: !AD || has(ACCESSED),
            dirty: has(if AD { DIRTY } else { WRITE }),
        }
    }
}

const _: () = {
    assert_format::<Ept4>();
    assert_format::<Ept5>();
    assert_format::<Ept4NoAd>();
    assert!(Ept4::FRAME_BITS + 12 == 48 && Ept5::FRAME_BITS + 12 == 57);
};
