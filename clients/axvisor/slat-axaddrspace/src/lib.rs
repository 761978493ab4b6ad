//! axaddrspace 0.1 with slat's `AddrSpace`: its areas are memslots, and its page table is a second stage that slat
//! keeps.
//!
//! AxVisor's arm64 vCPUs take every second-stage fault for an access to a device. So this crate populates each mapping
//! at once, young and writable, and keeps it. AxVisor keeps each address space behind one lock, and enters guests by
//! itself, so no vCPU of slat is ever in the guest: the engine's flushes are [broadcasts](slat::Host::broadcast_flush).
//!
//! `SLAT_MISTAKE` names, when this crate is compiled, a mistake that a check must find: `no-flush` leaves the
//! broadcasts out, `no-unmap` keeps mappings that AxVisor removes.

#![no_std]

extern crate alloc;

mod address_space;
mod frames;

// The names below shadow those of the glob import.
pub use address_space::AddrSpace;
pub use real::*;

/// Whether this build makes the mistake of this name.
fn mistake(name: &str) -> bool {
    option_env!("SLAT_MISTAKE") == Some(name)
}
