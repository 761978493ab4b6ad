//! Memory traces of real programs, as a stream of accesses.
//!
//! ```text
//! valgrind --tool=lackey --trace-mem=yes PROGRAM  ──▶  I  04001234,3     Fetch   3 bytes at 0x4001234
//!                                                       L 1ffefff8,8     Load
//!                                                       S 1ffefff0,8     Store
//!                                                       M 0421e0a0,4     Modify: load, then store
//! ```
//! 1. `source` opens the input and decompresses gzip or zstd, recognized by the first bytes, not by the name.
//! 2. `line` parses one line: a record, another line, or a garbled record. `formats` has what else is read: lackey's lines
//!    spelled otherwise, addresses with `R` or `W`, drmemtrace's view, page faults of ftrace and perf.
//! 3. [`Reader`] splits a large buffer into lines and returns the records in batches.
//! 4. [`Filter`] reduces a trace to accesses that miss in a small TLB.
//! 5. [`bundled`] has the traces inside the library.
//!
//! Guarantees: memory use depends neither on the length of the trace nor on that of a line. No input panics.
//! Lines that are no records are counted, never guessed at.
//!
//! ```
//! use slat_vcpu::trace::{Kind, Reader};
//!
//! let text = "==1== Lackey\nI  04001234,3\n S 1ffefff0,8\n";
//! let mut reader = Reader::new("example", text.as_bytes())?;
//! let mut batch = Vec::new();
//! while reader.fill(&mut batch, 4096)? > 0 {}
//! assert_eq!((batch[1].kind, batch[1].addr, batch[1].size), (Kind::Store, 0x1ffe_fff0, 8));
//! assert_eq!((reader.lines(), reader.skipped(), reader.garbled()), (3, 1, 0));
//! # Ok::<(), slat_vcpu::trace::Error>(())
//! ```

mod bundled;
mod error;
mod flaw;
mod formats;
mod line;
mod reader;
mod reduce;
mod source;
#[cfg(test)]
mod tests;

pub use bundled::{Bundled, bundled};
pub use error::Error;
pub use flaw::Flaw;
pub use formats::FORMATS;
pub use reader::Reader;
pub use reduce::Filter;

use std::fmt;

/// Kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Fetches an instruction.
    Fetch,
    /// Reads.
    Load,
    /// Writes.
    Store,
    /// Reads, then writes, the same bytes in one instruction.
    Modify,
}

impl Kind {
    /// Whether the bytes are read as data.
    #[inline]
    pub const fn reads(self) -> bool {
        matches!(self, Self::Load | Self::Modify)
    }

    /// Whether the bytes are written.
    #[inline]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Store | Self::Modify)
    }
}

/// One access of a traced program. Its [`Display`](fmt::Display) is lackey's line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Access {
    /// First byte, in the traced program's addresses; always below [`Access::LIMIT`]. A plain number, since it
    /// is no guest address until a replay places it.
    pub addr: u64,
    /// Bytes, from 1 to [`Access::MAX_SIZE`], all below [`Access::LIMIT`].
    pub size: u16,
    /// Kind of the access.
    pub kind: Kind,
}

impl Access {
    /// Upper bound of addresses: the end of what five table levels map.
    pub const LIMIT: u64 = 1 << 57;
    /// The largest accepted access, in bytes. Real ones have at most a few hundred (saving the vector
    /// registers).
    pub const MAX_SIZE: u16 = 4096;

    /// Returns the numbers of the 4 KiB pages that it touches: one or two.
    pub fn pages(self) -> std::ops::RangeInclusive<u64> {
        self.addr >> 12..=(self.addr + u64::from(self.size) - 1) >> 12
    }
}

// A replay holds batches of these: keep them small.
const _: () = assert!(size_of::<Access>() == 16);

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Fetch => "I ",
            Kind::Load => " L",
            Kind::Store => " S",
            Kind::Modify => " M",
        };
        write!(f, "{kind} {:08x},{}", self.addr, self.size)
    }
}
