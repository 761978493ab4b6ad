//! The errno of each of the host's errors.

use super::HostError;

impl HostError {
    /// Returns KVM's errno.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Io => 5,
            Self::Pending => 11,
            Self::NoMemory => 12,
            Self::Fault | Self::NeedsPage => 14,
            Self::Poisoned => 133,
        }
    }
}
