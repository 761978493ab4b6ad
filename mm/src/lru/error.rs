//! Why a command to the LRU was refused.

/// See the module's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LruError {
    /// The address space was built without an LRU.
    #[error("the address space has no LRU")]
    Off,
    /// The arena has no such node.
    #[error("the arena has no such node")]
    NoSuchNode,
    /// A generation that is not there yet, or one of the youngest, which are not evicted; or a setting out of range.
    #[error("no such generation, or one of the youngest")]
    Invalid,
    /// There are as many generations as there can be, and the pass was not to be forced.
    #[error("there are as many generations as there can be")]
    OutOfRange,
    /// The address space has exited.
    #[error("the address space has exited")]
    Interrupted,
}

impl LruError {
    /// The number that the kernel's interface answers with.
    pub fn errno(self) -> i32 {
        match self {
            Self::Off | Self::NoSuchNode | Self::Invalid => libc::EINVAL,
            Self::OutOfRange => libc::ERANGE,
            Self::Interrupted => libc::EINTR,
        }
    }
}
