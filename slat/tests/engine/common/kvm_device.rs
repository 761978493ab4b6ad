//! The machine's own KVM, for tests that compare with it.

use kvm_ioctls::Kvm as Device;
use std::io::{self, Write};

/// Returns `None` without a KVM device, which is no failure unless `SLAT_REQUIRE_KVM=1` is in the environment.
pub fn device() -> Option<Device> {
    match Device::new() {
        Ok(device) => Some(device),
        Err(error) => {
            assert!(std::env::var_os("SLAT_REQUIRE_KVM").is_none_or(|v| v != "1"), "/dev/kvm: {error}");
            // Bypasses the capture of passing tests: the log shows this.
            let _ = writeln!(io::stderr(), "skipped, no comparison with the kernel: /dev/kvm: {error}");
            None
        }
    }
}
