//! What the x86 formats share: 52 bits of physical address, pages of 4K, 2M, 1G. And what entries of the host's own paging share,
//! which AMD's nested walk uses, with three levels or five. Where the record of the host's answer goes is the format's business.
//!
//! PCD and PWT choose one of the first four types of the *host's* PAT, which must be write-back, write-combining, uncached as far as
//! the guest does not combine stores (UC-), and uncached (UC): Linux sets it so; a processor comes with write-through as the second.

use super::when;
use crate::addr::{Level, PAGE_SHIFT, Pfn};
use crate::table::entry::Word;
use crate::table::format::{Access, Format, Leaf, Perms};

/// Bits 51..12 of a link or leaf: the frame's address.
pub(super) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Set in a leaf above the lowest level ("PS" to the manuals).
pub(super) const LARGE: u64 = 1 << 7;
/// Ignored by hardware in every leaf of EPT and of long mode: the host allowed writes when this leaf was made.
pub(super) const HOST_WRITE: u64 = 1 << 53;

pub(super) const PRESENT: u64 = 1 << 0;
pub(super) const WRITE: u64 = 1 << 1;
pub(super) const USER: u64 = 1 << 2;
pub(super) const ACCESSED: u64 = 1 << 5;
pub(super) const DIRTY: u64 = 1 << 6;
const PWT: u64 = 1 << 3;
const PCD: u64 = 1 << 4;
pub(super) const MEMORY: [u64; 4] = [0, PWT, PCD, PCD | PWT];
const NO_EXECUTE: u64 = 1 << 63;

/// The address field for `pfn`.
#[inline(always)]
pub(super) const fn address(pfn: Pfn) -> u64 {
    pfn.0 << PAGE_SHIFT & ADDRESS
}

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
    super::read_leaf::<F>(word, Perms::of(true, word.0 & WRITE != 0, word.0 & NO_EXECUTE == 0))
}
