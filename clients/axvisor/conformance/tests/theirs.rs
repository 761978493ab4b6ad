//! The tests of `AddrSpace` that are in axaddrspace 0.1.5's own file, to the letter: `run` has cut them out of it. Around them is what
//! their file names, from slat's crate.

#![allow(clippy::all, reason = "what is not ours stays as it is")]

use axaddrspace::{AxMmHal, HostPhysAddr, HostVirtAddr};

#[allow(dead_code, reason = "other tests of theirs use the rest")]
#[rustfmt::skip]
#[path = "../../target/crates/axaddrspace-0.1.5/src/test_utils/mod.rs"]
mod test_utils;

mod address_space {
    use axaddrspace::{AddrSpace, GuestPhysAddr, MappingFlags};
    use memory_addr::PhysAddr;

    include!("../../target/tests-of-address-space.rs");
}
