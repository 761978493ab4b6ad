//! What goes wrong with a page on its way.

use super::device::Failed;

/// Why a page was not stored, or not read back. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SwapError {
    /// No room is left.
    Full,
    /// There is room in the pool, but the arena has no frame for it at the moment.
    NoFrame,
    /// It does not compress, and there is nowhere else to put it.
    Incompressible,
    /// The device failed.
    Io { errno: i32 },
    /// What came back is not what was stored.
    Corrupt,
    /// There is no swap.
    NoSwap,
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
