//! Memory that the hardware uses.

use alloc::boxed::Box;

/// A page of memory whose address this program gives to the hardware.
#[repr(C, align(4096))]
pub(super) struct Region([u8; 4096]);

impl Region {
    /// Zeroes, except for the revision in the first four bytes, which the hardware demands.
    pub(super) fn new(revision: u32) -> Box<Self> {
        let mut region = Box::new(Self([0; 4096]));
        region.0[..4].copy_from_slice(&revision.to_le_bytes());
        region
    }

    pub(super) fn address(&self) -> u64 {
        (&raw const *self) as u64
    }
}
