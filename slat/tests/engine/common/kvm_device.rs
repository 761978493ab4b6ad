//! The machine's own KVM, for tests that compare with it.

use kvm_ioctls::Kvm as Device;
use std::io::{self, Write};

/// `None` where there is none, and that is fine: `SLAT_REQUIRE_KVM=1` in the environment says that it is not.
pub fn device() -> Option<Device> {
    match Device::new() {
        Ok(device) => Some(device),
        Err(error) => {
            assert!(std::env::var_os("SLAT_REQUIRE_KVM").is_none_or(|v| v != "1"), "/dev/kvm: {error}");
            // Past the capture of passing tests: the log is to say so.
            let _ = writeln!(io::stderr(), "skipped, no comparison with the kernel: /dev/kvm: {error}");
            None
        }
    }
}
