//! Helpers for several of these tests. Other tests include `tally`, `random` and `thorough` by path, too.

pub mod identity;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod kvm_device;
pub mod own;
pub mod random;
pub mod thorough;
