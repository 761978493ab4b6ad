//! Failures of commands, and a parser of arguments.

use std::fmt::Display;

/// Reason for a command's failure.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command found something wrong: exit status 3.
    #[error("{0}")]
    Found(String),
    /// The command failed: exit status 2.
    #[error("{0}")]
    Other(String),
}

/// Wraps any other error.
pub fn other(error: impl Display) -> Failure {
    Failure::Other(error.to_string())
}

/// Parses a size in bytes: `4096`, `64K`, `256M`, `2G`.
pub fn size(text: &str) -> Result<usize, String> {
    let (number, shift) = match text.char_indices().last() {
        Some((at, 'K')) => (&text[..at], 10),
        Some((at, 'M')) => (&text[..at], 20),
        Some((at, 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let size = number.parse::<usize>().ok().and_then(|number| number.checked_mul(1 << shift));
    size.ok_or_else(|| {
        format!("{text:?} is no size: write a number of bytes, or a number with K, M or G, such as 256M")
    })
}
