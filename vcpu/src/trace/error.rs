//! What can go wrong with a trace; each error reads as one line that names the trace.

use super::line::Flaw;
use std::io;

/// Why a trace cannot be read on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is missing, or may not be opened.
    #[error("cannot open {name}: {source}")]
    Open {
        /// The trace, as its user names it.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// The file or pipe broke while it was read.
    #[error("cannot read {name}: {source}")]
    Read {
        /// The trace.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// Compressed data that is truncated or corrupt.
    #[error("{name}: broken {format} data: {source}")]
    Compression {
        /// The trace.
        name: String,
        /// Of which compression.
        format: &'static str,
        /// What the decoder said.
        source: io::Error,
    },
    /// A garbled line, under [`Reader::strict`](super::Reader::strict).
    #[error("{name}: line {line}: {flaw}")]
    Line {
        /// The trace.
        name: String,
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        #[source]
        flaw: Flaw,
    },
}
