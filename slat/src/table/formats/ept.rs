//! Intel EPT with four or five levels, with or without Accessed and Dirty bits (Intel SDM volume 3, "EPT paging
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
//! | write-combining | 1 | 0 | write-combining; uncached if the guest says so |
//! | uncached | 0 | 0 | uncached; write-combining if the guest says so |
//! | device | 0 | 1 | uncached |
//!
//! **TDX** (Intel's TDX module specification, "Shared EPT"). One bit of a guest-physical address says *shared*: bit 47,
//! or 51 with five levels. The processor walks the host's table, with that bit set, only for shared memory. A table of
//! the TDX module translates private memory. So `SHARED` is set in every index, and frames end below it. Absent entries
//! suppress #VE, as in every format.
//!
//! Processors before Haswell have no A and D, and bit 6 of the EPT pointer disables them elsewhere. Hardware then
//! ignores and never sets the two bits, and a leaf that has not been accessed is not present ([`Format::HARDWARE_AD`]).

use super::x86::{ADDRESS, HOST_WRITE, LARGE, address};
use super::{read_leaf, when};
use crate::addr::INDEX_BITS;
use crate::{Access, Format, Gfn, Leaf, Level, PAGE_SHIFT, Perms, Pfn, Word};

pub(crate) const READ: u64 = 1 << 0;
pub(crate) const WRITE: u64 = 1 << 1;
pub(crate) const EXECUTE: u64 = 1 << 2;
pub(crate) const IGNORE_PAT: u64 = 1 << 6;
/// Write-back, write-combining, uncached, and uncached regardless of the guest.
const MEMORY: [u64; 4] = [6 << 3, 1 << 3, 0, IGNORE_PAT];
pub(crate) const ACCESSED: u64 = 1 << 8;
pub(crate) const DIRTY: u64 = 1 << 9;

/// EPT with `LEVELS` levels. `AD`: the EPT pointer enables Accessed and Dirty. `SHARED`: the bit of shared addresses in
/// a trust domain, whose shared memory this table maps.
///
/// ```
/// use slat::{Format, Gfn, Gpa, Level, table::formats::Ept};
/// type OfTrustDomain = Ept<4, true, 47>;
/// let (gpa, shared) = Gpa(1 << 47 | 0x5000).split_bit(47);
/// assert_eq!((gpa, shared), (Gpa(0x5000), true));
/// let root = Level::new(4).unwrap();
/// assert_eq!((OfTrustDomain::index(gpa.gfn(), root), OfTrustDomain::index(gpa.gfn(), Level::K4)), (256, 5));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ept<const LEVELS: u8, const AD: bool = true, const SHARED: u32 = 0>;

/// Four levels: 48 bits of guest-physical address. For hardware whose EPT pointer enables Accessed and Dirty, or for a
/// guest in software that translates by [`Vcpu::access`](crate::Vcpu::access); else [`Ept4NoAd`].
pub type Ept4 = Ept<4>;
/// Five levels: 57 bits of guest-physical address.
pub type Ept5 = Ept<5>;
/// Four levels, with an EPT pointer that does not enable Accessed and Dirty; or for software that sets neither.
pub type Ept4NoAd = Ept<4, false>;

// SAFETY: `formats/tests.rs` checks constants, links, leaves and edits.
unsafe impl<const LEVELS: u8, const AD: bool, const SHARED: u32> Format for Ept<LEVELS, AD, SHARED> {
    const NAME: &'static str = match (LEVELS, AD, SHARED) {
        (5, true, 0) => "ept5",
        (5, false, 0) => "ept5-noad",
        (_, true, 0) => "ept4",
        (_, false, 0) => "ept4-noad",
        (5, ..) => "ept5-td",
        _ => "ept4-td",
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
    const FRAME_BITS: u32 =
        if SHARED == 0 { LEVELS as u32 * INDEX_BITS } else { SHARED.saturating_sub(PAGE_SHIFT) };

    #[inline(always)]
    fn index(gfn: Gfn, level: Level) -> usize {
        let shared = if SHARED == 0 { 0 } else { 1 << Self::FRAME_BITS };
        (((gfn.0 | shared) >> level.shift()) & ((1 << INDEX_BITS) - 1)) as usize
    }

    #[inline(always)]
    fn link(pfn: Pfn, _level: Level) -> Word {
        Word(address(pfn) | READ | WRITE | EXECUTE)
    }

    #[inline(always)]
    fn leaf(leaf: &Leaf, level: Level) -> Word {
        let bits = address(leaf.pfn)
            | when(leaf.perms.allows(Access::Read), READ)
            | when(leaf.perms.allows(Access::Write), WRITE)
            | when(leaf.perms.allows(Access::Fetch), EXECUTE)
            | when(leaf.accessed, Self::ACCESSED)
            | when(leaf.dirty, Self::DIRTY)
            | when(level > Level::K4, LARGE);
        super::leaf::<Self>(leaf, bits)
    }

    #[inline]
    fn read_leaf(word: Word) -> Leaf {
        let has = |bit| word.0 & bit != 0;
        read_leaf::<Self>(word, Perms::of(has(READ), has(WRITE), has(EXECUTE)))
    }
}
