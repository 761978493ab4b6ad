//! Why a command to the LRU was refused.

/// See the module's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LruError {
    /// The address space was built without an LRU.
    Off,
    /// The arena has no such node.
    NoSuchNode,
    /// A generation that is not there yet, or one of the youngest, which are not evicted; or a setting out of range.
    Invalid,
    /// There are as many generations as there can be, and the pass was not to be forced.
    OutOfRange,
    /// The address space has exited.
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

impl core::fmt::Display for LruError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Off => "the address space has no LRU",
            Self::NoSuchNode => "the arena has no such node",
            Self::Invalid => "no such generation, or one of the youngest",
            Self::OutOfRange => "there are as many generations as there can be",
            Self::Interrupted => "the address space has exited",
        })
    }
}

impl core::error::Error for LruError {}
