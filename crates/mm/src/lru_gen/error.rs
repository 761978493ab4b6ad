//! Errors of commands, with the kernel's `errno` for each.

use crate::lru::LruError;

/// Why a command was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LruGenError {
    /// The text is no command or setting; it begins like this.
    #[error("`{0}` is no command")]
    Garbage(String),
    /// No address space has this number.
    #[error("there is no memcg {0}")]
    NoSuchMemcg(u32),
    /// The arena has no such node.
    #[error("there is no node {0}")]
    NoSuchNode(u32),
    /// The core cannot be switched off: an address space has its LRU for its whole life.
    #[error("the LRU itself cannot be switched off")]
    CoreIsOn,
    /// The LRU refused the command.
    #[error(transparent)]
    Lru(#[from] LruError),
    /// [`LruGen::interrupt`](super::LruGen::interrupt) was called during the command.
    #[error("interrupted")]
    Interrupted,
}

impl LruGenError {
    /// Returns the `errno` of the kernel's interface.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Garbage(_) | Self::NoSuchMemcg(_) | Self::NoSuchNode(_) => libc::EINVAL,
            Self::CoreIsOn => libc::EOPNOTSUPP,
            Self::Lru(error) => error.errno(),
            Self::Interrupted => libc::EINTR,
        }
    }

    /// Returns the name of the `errno`, for example `EINVAL`.
    pub fn name(&self) -> &'static str {
        match self.errno() {
            libc::ERANGE => "ERANGE",
            libc::EINTR => "EINTR",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            _ => "EINVAL",
        }
    }
}
