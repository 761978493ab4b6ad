//! Why a command was refused, with the kernel's number for it.

use crate::lru::LruError;

/// See the module's header.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LruGenError {
    /// No command or setting; this is how it begins.
    #[error("`{0}` is no command")]
    Garbage(String),
    /// No address space has this number.
    #[error("there is no memcg {0}")]
    NoSuchMemcg(u32),
    /// The arena has no such node.
    #[error("there is no node {0}")]
    NoSuchNode(u32),
    /// The core cannot be switched off: it is the address spaces' for their lives.
    #[error("the LRU itself cannot be switched off")]
    CoreIsOn,
    /// The LRU's own answer.
    #[error(transparent)]
    Lru(#[from] LruError),
    /// [`LruGen::interrupt`](super::LruGen::interrupt) was called meanwhile.
    #[error("interrupted")]
    Interrupted,
}

impl LruGenError {
    /// The number that the kernel's interface answers with.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Garbage(_) | Self::NoSuchMemcg(_) | Self::NoSuchNode(_) => libc::EINVAL,
            Self::CoreIsOn => libc::EOPNOTSUPP,
            Self::Lru(error) => error.errno(),
            Self::Interrupted => libc::EINTR,
        }
    }

    /// Its name: `EINVAL`.
    pub fn name(&self) -> &'static str {
        match self.errno() {
            libc::ERANGE => "ERANGE",
            libc::EINTR => "EINTR",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            _ => "EINVAL",
        }
    }
}
