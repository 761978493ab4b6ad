//! Memory traces of real programs, as a stream of accesses.
//!
//! ```text
//! valgrind --tool=lackey --trace-mem=yes PROGRAM  ──▶  I  04001234,3     Fetch   3 bytes at 0x4001234
//!                                                       L 1ffefff8,8     Load
//!                                                       S 1ffefff0,8     Store
//!                                                       M 0421e0a0,4     Modify: load, then store
//! ```
//! 1. `source` opens what the user names and undoes gzip or zstd, told by the first bytes, not by the name.
//! 2. `line` judges one line: a record, something else, or a record that is garbled.
//! 3. [`Reader`] cuts a large buffer into lines and hands the records out in batches.
//! 4. [`Filter`] reduces a trace to what a small TLB would not answer.
//! 5. [`bundled`] are the traces that travel inside the library.
//!
//! Promises: memory use grows neither with the length of the trace nor with that of a line; no input
//! panics; what is not a record is counted, never guessed at.
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
mod line;
mod reader;
mod reduce;
mod source;
#[cfg(test)]
mod tests;

pub use bundled::{Bundled, bundled};
pub use error::Error;
pub use line::Flaw;
pub use reader::Reader;
pub use reduce::Filter;

use std::fmt;

/// What an access does to memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// The processor fetches an instruction.
    Fetch,
    /// It reads.
    Load,
    /// It writes.
    Store,
    /// One instruction reads, then writes, the same bytes.
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

/// One access of a traced program. Its [`Display`](fmt::Display) is the line that lackey prints.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Access {
    /// First byte, as the traced program numbers its memory; always below [`Access::LIMIT`]. No guest of
    /// ours has such an address until a replay gives it one, so it is a plain number.
    pub addr: u64,
    /// Bytes, from 1 to [`Access::MAX_SIZE`]. All of them lie below [`Access::LIMIT`].
    pub size: u16,
    /// What is done.
    pub kind: Kind,
}

impl Access {
    /// No program has memory here or above: the end of what five levels of table reach.
    pub const LIMIT: u64 = 1 << 57;
    /// The largest access believed, in bytes. Real ones end at a few hundred (saving the vector registers).
    pub const MAX_SIZE: u16 = 4096;

    /// The pages of 4 KiB that it touches, by number: one or two.
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
