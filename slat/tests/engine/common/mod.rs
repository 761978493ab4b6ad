//! What several of these tests use. `tally`, `random` and `thorough` are also other tests', by their paths.

pub mod identity;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod kvm_device;
pub mod own;
pub mod random;
pub mod thorough;
