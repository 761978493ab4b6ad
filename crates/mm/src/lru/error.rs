//! Errors of commands to the LRU.

/// Why the LRU refused a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LruError {
    /// The address space was built without an LRU.
    #[error("the address space has no LRU")]
    Off,
    /// The arena has no such node.
    #[error("the arena has no such node")]
    NoSuchNode,
    /// The generation does not exist yet, or is one of the youngest, which are not evicted; or a setting is out
    /// of range.
    #[error("no such generation, or one of the youngest")]
    Invalid,
    /// The number of generations is at its maximum, and the pass was not forced.
    #[error("there are as many generations as there can be")]
    OutOfRange,
    /// The address space has exited.
    #[error("the address space has exited")]
    Interrupted,
}

impl LruError {
    /// Returns the `errno` of the kernel's interface.
    pub fn errno(self) -> i32 {
        match self {
            Self::Off | Self::NoSuchNode | Self::Invalid => libc::EINVAL,
            Self::OutOfRange => libc::ERANGE,
            Self::Interrupted => libc::EINTR,
        }
    }
}
