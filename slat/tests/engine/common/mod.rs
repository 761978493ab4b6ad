//! What several of these tests use. `tally` and `random` are also the soak's and slat-vcpu's, by their paths.

pub mod identity;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod kvm_device;
pub mod random;
