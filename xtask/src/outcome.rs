//! The result of a chore.

use clap::error::ErrorKind;

/// Result of a chore.
pub type Outcome = anyhow::Result<()>;

/// Returns an error for arguments that contradict each other.
pub fn misuse(why: &str) -> Outcome {
    Err(clap::Error::raw(ErrorKind::ArgumentConflict, format!("{why}\n")).into())
}
