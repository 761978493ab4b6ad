//! The tests of `AddrSpace` in axaddrspace 0.1.5's own file, unchanged: `run` cuts them out of it. This file defines
//! the names that they use, from slat's crate.

#![allow(clippy::all, reason = "code of other authors stays unchanged")]

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
