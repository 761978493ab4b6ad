//! Errors of storing and loading pages.

use super::device::Failed;
use crate::error::MmError;
use slat::Hva;

/// Why a page was not stored or not read back. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SwapError {
    /// No room is left.
    Full,
    /// The pool has room, but the arena has no frame for it now.
    NoFrame,
    /// The page does not compress, and there is no device.
    Incompressible,
    /// The device failed.
    Io { errno: i32 },
    /// The contents are not what was stored.
    Corrupt,
    /// There is no swap.
    NoSwap,
}

impl SwapError {
    /// Converts to the error of an access to `hva`.
    pub(crate) fn at(self, hva: Hva) -> MmError {
        match self {
            Self::Io { errno } => MmError::SwapIo { hva, errno },
            Self::Corrupt | Self::Full | Self::NoFrame | Self::Incompressible | Self::NoSwap => {
                MmError::SwapCorrupt(hva)
            }
        }
    }
}

impl From<Failed> for SwapError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::NoSpace => Self::Full,
            Failed::Os(errno) => Self::Io { errno },
            Failed::Ended => Self::Corrupt,
        }
    }
}
