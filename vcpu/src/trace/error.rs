//! What can go wrong with a trace; each error reads as one line that names the trace.

use super::line::Flaw;
use std::{error, fmt, io};

/// Why a trace cannot be read on.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The file is missing, or may not be opened.
    Open {
        /// The trace, as its user names it.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// The file or pipe broke while it was read.
    Read {
        /// The trace.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// Compressed data that is truncated or corrupt.
    Compression {
        /// The trace.
        name: String,
        /// Of which compression.
        format: &'static str,
        /// What the decoder said.
        source: io::Error,
    },
    /// A garbled line, under [`Reader::strict`](super::Reader::strict).
    Line {
        /// The trace.
        name: String,
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        flaw: Flaw,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { name, source } => write!(f, "cannot open {name}: {source}"),
            Self::Read { name, source } => write!(f, "cannot read {name}: {source}"),
            Self::Compression { name, format, source } => write!(f, "{name}: broken {format} data: {source}"),
            Self::Line { name, line, flaw } => write!(f, "{name}: line {line}: {flaw}"),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Open { source, .. } | Self::Read { source, .. } | Self::Compression { source, .. } => {
                Some(source)
            }
            Self::Line { flaw, .. } => Some(flaw),
        }
    }
}
