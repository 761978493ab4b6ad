//! PAE paging of a 32-bit host, three levels, walked for the guest (AMD APM volume 2, "Nested Paging", "PAE Paging").
//!
//! ```text
//! leaf      63        51....12  9         7   6  5  4    3    2  1  0
//!           NX        frame     host-     PS  D  A  PCD  PWT  U  W  P
//!                               writable
//! PDPTE               frame     all else reserved                   P
//! ```
//! A nested walk uses the *host's* own paging mode. A hypervisor on a 32-bit host has this format, and its guests have
//! 32 bits of guest-physical address. The root is four entries (PDPTEs) at the beginning of a page; no walk reaches the
//! other holes of that page. PDPTEs have no permissions and no Accessed bit: setting a reserved bit there faults. In
//! lower entries bits 62..52 are reserved, too, so the host's answer is in one of the three bits for software.
//!
//! A processor may keep the four PDPTEs in registers after it loads the root. If yours does, reload the root on return
//! from each fault, because a PDPTE that was a hole may be a link now.

use super::when;
use super::x86::{self, ACCESSED, ADDRESS, DIRTY, LARGE, MEMORY, PRESENT, USER, WRITE, address};
use crate::table::format::HostPaging;
use crate::{Format, Leaf, Level, Pfn, Word};

const HOST_WRITE: u64 = 1 << 9;

/// The level of the PDPTEs.
const ROOT: Level = Level::G1;

/// PAE paging as a nested table: 32 bits of guest-physical address, 52 of physical.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pae;

// SAFETY: `formats/tests.rs` checks constants, links, leaves and edits.
unsafe impl Format for Pae {
    const NAME: &'static str = "pae";
    const LEVELS: u8 = ROOT.number();
    const MAX_LEAF: Level = Level::M2;
    const TABLE_MASK: u64 = PRESENT | LARGE;
    const TABLE_BITS: u64 = PRESENT;
    const PRESENT: u64 = PRESENT;
    const ADDRESS: u64 = ADDRESS;
    const WRITE: u64 = WRITE;
    const HOST_WRITE: u64 = HOST_WRITE;
    const ACCESSED: u64 = ACCESSED;
    const DIRTY: u64 = DIRTY;
    const MEMORY: Option<[u64; 4]> = Some(MEMORY);
    /// Four PDPTEs, not 512.
    const FRAME_BITS: u32 = ROOT.shift() + 2;

    #[inline(always)]
    fn link(pfn: Pfn, level: Level) -> Word {
        Word(address(pfn) | PRESENT | when(level < ROOT, WRITE | USER))
    }

    #[inline(always)]
    fn leaf(leaf: &Leaf, level: Level) -> Word {
        x86::leaf::<Self>(leaf, level)
    }

    #[inline]
    fn read_leaf(word: Word) -> Leaf {
        x86::read_leaf::<Self>(word)
    }

    #[inline(always)]
    fn touch_link(level: Level) -> u64 {
        when(level < ROOT, ACCESSED)
    }
}

impl HostPaging for Pae {}
