//! The host's own paging, which AMD's nested walk uses: what its entries of 64 bits share, with three levels or five.
//! Where the record of the host's answer goes is the format's business.

use super::x86::{ADDRESS, LARGE, address, when};
use crate::addr::{Level, PAGE_SHIFT, Pfn};
use crate::table::entry::Word;
use crate::table::format::{Access, Leaf, Perms};

pub(super) const PRESENT: u64 = 1 << 0;
pub(super) const WRITE: u64 = 1 << 1;
pub(super) const USER: u64 = 1 << 2;
pub(super) const ACCESSED: u64 = 1 << 5;
pub(super) const DIRTY: u64 = 1 << 6;
const NO_EXECUTE: u64 = 1 << 63;

/// A leaf of `level`. A nested walk is a user access.
#[inline(always)]
pub(super) fn leaf(leaf: &Leaf, level: Level, host_write: u64) -> Word {
    Word(
        address(leaf.pfn)
            | PRESENT
            | USER
            | when(leaf.perms.allows(Access::Write), WRITE)
            | when(!leaf.perms.allows(Access::Fetch), NO_EXECUTE)
            | when(leaf.host_writable, host_write)
            | when(leaf.accessed, ACCESSED)
            | when(leaf.dirty, DIRTY)
            | when(level > Level::K4, LARGE),
    )
}

/// What a leaf says.
#[inline]
pub(super) fn read_leaf(word: Word, host_write: u64) -> Leaf {
    let has = |bit| word.0 & bit != 0;
    Leaf {
        pfn: Pfn((word.0 & ADDRESS) >> PAGE_SHIFT),
        perms: Perms::of(true, has(WRITE), !has(NO_EXECUTE)),
        host_writable: has(host_write),
        accessed: has(ACCESSED),
        dirty: has(DIRTY),
    }
}
