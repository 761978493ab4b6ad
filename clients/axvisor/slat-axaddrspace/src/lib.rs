//! axaddrspace 0.1 in which `AddrSpace` is slat's: its areas are memslots, its page table is a second stage that slat keeps.
//!
//! AxVisor's arm64 vCPUs take every second-stage fault for a device's. So what is mapped is populated at once, young and for stores,
//! and stays. It keeps each address space behind one lock, and enters guests by itself, so no vCPU of slat's is ever in the guest: the
//! engine's flushes are [broadcasts](slat::Host::broadcast_flush).
//!
//! `SLAT_MISTAKE`, when this crate is compiled, names a mistake to make, each for a check that must find it: `no-flush` leaves the
//! broadcasts out, `no-unmap` keeps what is unmapped.

#![no_std]

extern crate alloc;

mod address_space;
mod frames;

// What is named below shadows what comes by the star.
pub use address_space::AddrSpace;
pub use real::*;

/// Whether the mistake of this name is made.
fn mistake(name: &str) -> bool {
    option_env!("SLAT_MISTAKE") == Some(name)
}
