//! Errors of traces; each is one line that names the trace.

use super::flaw::Flaw;
use std::io;

/// Why a trace cannot be read further.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is missing, or may not be opened.
    #[error("cannot open {name}: {source}")]
    Open {
        /// Name of the trace, as given by the user.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The file or pipe broke while it was read.
    #[error("cannot read {name}: {source}")]
    Read {
        /// The trace.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The compressed data is truncated or corrupt.
    #[error("{name}: broken {format} data: {source}")]
    Compression {
        /// The trace.
        name: String,
        /// The compression format.
        format: &'static str,
        /// The decoder's error.
        source: io::Error,
    },
    /// The file has a format that is not read.
    #[error("{name}: {format} is not read: {how}")]
    Format {
        /// The trace.
        name: String,
        /// The format.
        format: &'static str,
        /// How to convert it.
        how: String,
    },
    /// A garbled line, with [`Reader::strict`](super::Reader::strict).
    #[error("{name}: line {line}: {flaw}; the formats of a line: {}", super::FORMATS)]
    Line {
        /// The trace.
        name: String,
        /// Counted from 1.
        line: u64,
        /// The error in it.
        #[source]
        flaw: Flaw,
    },
}
