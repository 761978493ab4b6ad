//! What the two x86 formats share: nine index bits a level, 52 bits of physical address, pages of 4K, 2M, 1G.

use crate::addr::PAGE_SHIFT;
use crate::addr::Pfn;

/// Bits 51..12 of a link or leaf: the frame's address.
pub(super) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Set in a leaf above the lowest level ("PS" to the manuals).
pub(super) const LARGE: u64 = 1 << 7;
/// Ignored by hardware in every leaf of both formats: the host allowed writes when this leaf was made.
pub(super) const HOST_WRITE: u64 = 1 << 53;

/// The address field for `pfn`.
#[inline(always)]
pub(super) const fn address(pfn: Pfn) -> u64 {
    pfn.0 << PAGE_SHIFT & ADDRESS
}

/// `bit` if `on`.
#[inline(always)]
pub(super) const fn when(on: bool, bit: u64) -> u64 {
    if on { bit } else { 0 }
}
