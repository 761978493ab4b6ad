//! AMD NPT: ordinary long-mode paging, walked for the guest (AMD APM volume 2, "Nested Paging").
//!
//! ```text
//! leaf   63  53        51....12  7   6  5  4    3    2  1  0
//!        NX  host-     frame     PS  D  A  PCD  PWT  U  W  P
//!            writable
//! ```
//! A nested walk is a user access, so U is set at every level. The same bits are the host's own long-mode paging for
//! user pages: the primary MMU of `slat-mm` uses [`X64`].
//!
//! **Memory encryption** (AMD APM volume 2, "Secure Memory Encryption"). On a host that encrypts its memory, `C_BIT` is
//! the bit number from CPUID `8000_001F` (EBX, bits 5..0): 47 or 51. The bit is set in links, because tables are in
//! encrypted memory, and in write-back leaves; leaves of other types map devices. Frames end below the bit. For private
//! pages of an encrypted guest, the C-bit in the guest's own tables decides, whatever this table says.

use super::x86::{self, ACCESSED, ADDRESS, DIRTY, HOST_WRITE, LARGE, MEMORY, PRESENT, USER, WRITE, address};
use crate::table::format::HostPaging;
use crate::{Format, Leaf, Level, Pfn, Word};

/// Long-mode paging with `LEVELS` levels, as a nested table. `C_BIT`: the encryption bit, on a host that encrypts its
/// memory.
///
/// ```
/// use slat::{Format, Level, Pfn, table::formats::Npt};
/// type Encrypted = Npt<4, 51>;
/// assert_eq!(Encrypted::link(Pfn(7), Level::M2).0, 1 << 51 | 0x7007);
/// ```
/// ```compile_fail,E0080
/// # use slat::{map::Map, table::{Heap, formats::Npt}};
/// let _ = Map::<Npt<4, 12>, _>::new(Heap); // E0080: no processor has the bit there
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Npt<const LEVELS: u8, const C_BIT: u32 = 0>;

/// Four levels: 48 bits of guest-physical address.
pub type Npt4 = Npt<4>;
/// Five levels: 57 bits of guest-physical address.
pub type Npt5 = Npt<5>;
/// The host's own four-level long-mode table: the same bits, for the addresses of a process.
pub type X64 = Npt<4>;

impl<const LEVELS: u8, const C_BIT: u32> Npt<LEVELS, C_BIT> {
    /// The encryption bit, or zero.
    const ENCRYPTED: u64 = if C_BIT == 0 { 0 } else { 1 << C_BIT };
}

// SAFETY: `formats/tests.rs` checks constants, links, leaves and edits.
unsafe impl<const LEVELS: u8, const C_BIT: u32> Format for Npt<LEVELS, C_BIT> {
    const NAME: &'static str = match (LEVELS, C_BIT) {
        (5, 0) => "npt5",
        (5, _) => "npt5-c",
        (_, 0) => "npt4",
        _ => "npt4-c",
    };
    const LEVELS: u8 = LEVELS;
    const MAX_LEAF: Level = Level::G1;
    const TABLE_MASK: u64 = PRESENT | LARGE;
    const TABLE_BITS: u64 = PRESENT;
    const PRESENT: u64 = PRESENT;
    const ADDRESS: u64 = {
        assert!(C_BIT == 0 || C_BIT >= 32 && C_BIT <= 51, "processors have it at 47 or 51");
        ADDRESS & Self::ENCRYPTED.wrapping_sub(1)
    };
    const WRITE: u64 = WRITE;
    const HOST_WRITE: u64 = HOST_WRITE;
    const ACCESSED: u64 = ACCESSED;
    const DIRTY: u64 = DIRTY;
    const MEMORY: Option<[u64; 4]> = Some([MEMORY[0] | Self::ENCRYPTED, MEMORY[1], MEMORY[2], MEMORY[3]]);

    #[inline(always)]
    fn link(pfn: Pfn, _level: Level) -> Word {
        Word(address(pfn) | PRESENT | WRITE | USER | Self::ENCRYPTED)
    }

    #[inline(always)]
    fn leaf(leaf: &Leaf, level: Level) -> Word {
        x86::leaf::<Self>(leaf, level)
    }

    #[inline]
    fn read_leaf(word: Word) -> Leaf {
        x86::read_leaf::<Self>(word)
    }
}

impl<const LEVELS: u8, const C_BIT: u32> HostPaging for Npt<LEVELS, C_BIT> {}
