//! vm-memory 0.18 with slat's `GuestMemoryMmap` and `GuestRegionMmap`: each memory is a version of slat's memslots, and
//! each region a slot. The user of a region chooses its bitmap.
//!
//! `SLAT_SABOTAGE=1` makes every page but the first unknown: a suite that still passes does not run on this crate.

pub use real::*;

#[cfg(feature = "backend-mmap")]
mod guest_memory_mmap;
#[cfg(feature = "backend-mmap")]
pub use guest_memory_mmap::{GuestMemoryMmap, GuestRegionMmap};

/// The same types, at their original path.
#[cfg(feature = "backend-mmap")]
pub mod mmap {
    pub use crate::guest_memory_mmap::{GuestMemoryMmap, GuestRegionMmap};
    pub use real::mmap::*;
}
