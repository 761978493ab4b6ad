//! The host's own paging, which AMD's nested walk uses: what its entries of 64 bits share, with three levels or five.
//! Where the record of the host's answer goes is the format's business.
//!
//! PCD and PWT choose one of the first four types of the *host's* PAT, which must be write-back, write-combining, uncached as far as
//! the guest does not combine stores (UC-), and uncached (UC): Linux sets it so; a processor comes with write-through as the second.

use super::x86::{LARGE, address, when};
use crate::addr::Level;
use crate::table::entry::Word;
use crate::table::format::{Access, Format, Leaf, Perms};

pub(super) const PRESENT: u64 = 1 << 0;
pub(super) const WRITE: u64 = 1 << 1;
pub(super) const USER: u64 = 1 << 2;
pub(super) const ACCESSED: u64 = 1 << 5;
pub(super) const DIRTY: u64 = 1 << 6;
const PWT: u64 = 1 << 3;
const PCD: u64 = 1 << 4;
pub(super) const MEMORY: [u64; 4] = [0, PWT, PCD, PCD | PWT];
const NO_EXECUTE: u64 = 1 << 63;

/// A leaf of `level`. A nested walk is a user access.
#[inline(always)]
pub(super) fn leaf<F: Format>(leaf: &Leaf, level: Level) -> Word {
    Word(
        address(leaf.pfn)
            | PRESENT
            | USER
            | when(leaf.perms.allows(Access::Write), WRITE)
            | when(!leaf.perms.allows(Access::Fetch), NO_EXECUTE)
            | F::memory_bits(leaf.memory)
            | when(leaf.host_writable, F::HOST_WRITE)
            | when(leaf.accessed, ACCESSED)
            | when(leaf.dirty, DIRTY)
            | when(level > Level::K4, LARGE),
    )
}

/// What a leaf says.
#[inline]
pub(super) fn read_leaf<F: Format>(word: Word) -> Leaf {
    let has = |bit| word.0 & bit != 0;
    Leaf {
        pfn: F::pfn(word),
        perms: Perms::of(true, has(WRITE), !has(NO_EXECUTE)),
        memory: F::memory_type(word),
        host_writable: has(F::HOST_WRITE),
        accessed: has(ACCESSED),
        dirty: has(DIRTY),
    }
}
