//! The tests of `AddrSpace` in axaddrspace 0.6.0's package, unchanged, with slat's nested page table in place of their
//! mock.

#![allow(clippy::all, dead_code, reason = "what is not ours stays as it is")]

#[rustfmt::skip]
#[path = "../../target/tests-6/address_space.rs"]
mod address_space;
