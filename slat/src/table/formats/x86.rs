//! Parts shared by the x86 formats: 52 bits of physical address, pages of 4K, 2M, 1G. Also the entries of the host's
//! own paging, which AMD's nested walk uses with three to five levels. Each format chooses its bit for the host's
//! answer.
//!
//! PCD and PWT select one of the first four types of the *host's* PAT. These must be write-back, write-combining, UC-
//! (uncached unless the guest combines stores), and uncached (UC). Linux sets them so; after reset, the second is
//! write-through.

use super::when;
use crate::{Access, Format, Leaf, Level, PAGE_SHIFT, Perms, Pfn, Word};

/// The address bits of a link or leaf: 51..12.
pub(super) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Set in a leaf above the lowest level ("PS" to the manuals).
pub(crate) const LARGE: u64 = 1 << 7;
/// The host allowed writes when this leaf was made. Hardware ignores the bit in every leaf of EPT and of long mode.
pub(super) const HOST_WRITE: u64 = 1 << 53;

pub(crate) const PRESENT: u64 = 1 << 0;
pub(crate) const WRITE: u64 = 1 << 1;
pub(crate) const USER: u64 = 1 << 2;
pub(crate) const ACCESSED: u64 = 1 << 5;
pub(crate) const DIRTY: u64 = 1 << 6;
pub(crate) const PWT: u64 = 1 << 3;
pub(crate) const PCD: u64 = 1 << 4;
pub(super) const MEMORY: [u64; 4] = [0, PWT, PCD, PCD | PWT];
pub(crate) const NO_EXECUTE: u64 = 1 << 63;

/// Returns the address field for `pfn`.
#[inline(always)]
pub(super) const fn address(pfn: Pfn) -> u64 {
    pfn.0 << PAGE_SHIFT & ADDRESS
}

/// Encodes a leaf of `level`. A nested walk is a user access.
#[inline(always)]
pub(super) fn leaf<F: Format>(leaf: &Leaf, level: Level) -> Word {
    let bits = address(leaf.pfn)
        | PRESENT
        | USER
        | when(leaf.perms.allows(Access::Write), WRITE)
        | when(!leaf.perms.allows(Access::Fetch), NO_EXECUTE)
        | when(leaf.accessed, ACCESSED)
        | when(leaf.dirty, DIRTY)
        | when(level > Level::K4, LARGE);
    super::leaf::<F>(leaf, bits)
}

/// Decodes a leaf.
#[inline]
pub(super) fn read_leaf<F: Format>(word: Word) -> Leaf {
    super::read_leaf::<F>(word, Perms::of(true, word.0 & WRITE != 0, word.0 & NO_EXECUTE == 0))
}
