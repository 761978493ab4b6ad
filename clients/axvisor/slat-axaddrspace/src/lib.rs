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
const fn mistake(name: &str) -> bool {
    let Some(made) = option_env!("SLAT_MISTAKE") else { return false };
    let (made, name) = (made.as_bytes(), name.as_bytes());
    let mut at = 0;
    while at < made.len() && at < name.len() && made[at] == name[at] {
        at += 1;
    }
    at == made.len() && at == name.len()
}
