//! vm-memory 0.18 in which `GuestMemoryMmap` and `GuestRegionMmap` are slat's: each memory is a version of slat's memslots, each region
//! a slot. The bitmap of a region is the one that its user chose.
//!
//! `SLAT_SABOTAGE=1` makes memory above its first page unknown: a suite that passes all the same does not run on this crate.

pub use real::*;

#[cfg(feature = "backend-mmap")]
mod memory;
#[cfg(feature = "backend-mmap")]
pub use memory::{GuestMemoryMmap, GuestRegionMmap};

/// The same, where it was defined.
#[cfg(feature = "backend-mmap")]
pub mod mmap {
    pub use crate::memory::{GuestMemoryMmap, GuestRegionMmap};
    pub use real::mmap::*;
}
