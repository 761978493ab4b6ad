//! Why a command was refused, with the kernel's number for it.

use crate::lru::LruError;
use std::fmt;

/// See the module's header.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LruGenError {
    /// No command or setting; this is how it begins.
    Garbage(String),
    /// No address space has this number.
    NoSuchMemcg(u32),
    /// The arena has no such node.
    NoSuchNode(u32),
    /// The core cannot be switched off: it is the address spaces' for their lives.
    CoreIsOn,
    /// The LRU's own answer.
    Lru(LruError),
    /// [`LruGen::interrupt`](super::LruGen::interrupt) was called meanwhile.
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

impl fmt::Display for LruGenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Garbage(text) => write!(f, "`{text}` is no command"),
            Self::NoSuchMemcg(memcg) => write!(f, "there is no memcg {memcg}"),
            Self::NoSuchNode(node) => write!(f, "there is no node {node}"),
            Self::CoreIsOn => f.write_str("the LRU itself cannot be switched off"),
            Self::Lru(error) => error.fmt(f),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for LruGenError {}

impl From<LruError> for LruGenError {
    fn from(error: LruError) -> Self {
        Self::Lru(error)
    }
}
