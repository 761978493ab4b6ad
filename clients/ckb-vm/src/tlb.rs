//! The software TLB of a vCPU.

use std::ptr::null_mut;

/// A software TLB: each entry has the page that it serves for each kind of access, and the address of the page's bytes.
pub type Tlb = Box<[([u64; 3], *mut u8); 1024]>;
pub const NO_ENTRY: ([u64; 3], *mut u8) = ([u64::MAX; 3], null_mut());

/// An empty TLB.
pub fn no_entries() -> Tlb {
    vec![NO_ENTRY; 1024].try_into().expect("as many entries as it has")
}
