//! The tests of `AddrSpace` in axaddrspace 0.6.0's package, unchanged, with slat's nested page table in place of their
//! mock.

#![allow(clippy::all, dead_code, reason = "code of other authors stays unchanged")]

#[rustfmt::skip]
#[path = "../../target/tests-6/address_space.rs"]
mod address_space;
