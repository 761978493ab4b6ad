//! The stream between two machines: frames of 24 bytes, some followed by pages.
//!
//! ```text
//! sender                                       receiver
//! Hello, Range, Range, …, EndOfRound 0         creates the memory, or keeps the existing one
//! Pages (and their contents), Zeroes, …        as many as the round has
//! EndOfRound ────────────────────────────────▶ compares the number of pages and the checksum
//!            ◀──────────────────────────────── Received: the same values
//! …
//! End        ────────────────────────────────▶ like EndOfRound, for the last round
//!            ◀──────────────────────────────── Received
//! Go                                           from here on the guest is the receiver's
//! ```
//! A round counts when both sides have confirmed it; until then nothing of it counts, whatever has arrived.
//! Each side computes the checksum over the frames that it has sent or read. Pages have a checksum of their
//! own, which is verified before they are written. All numbers are little-endian. Fields that a frame does not
//! use are zero.

use crate::checksum::Sum;
use crate::error::WireError;
use crate::guest::MemoryRange;
use slat::{Gfn, PAGE_SHIFT, PAGE_SIZE, SlotId, Span};
use std::array;
use std::io::{BufWriter, Read, Write};

/// Bytes of a frame without its pages.
pub(crate) const FRAME: usize = 24;
/// Most pages of one frame.
pub(crate) const MOST_PAGES: u64 = 64;
/// The first bytes of a stream.
const MAGIC: u64 = u64::from_le_bytes(*b"slat mig");
pub(crate) const VERSION: u32 = 2;
/// Upper bound of guest frames: their addresses fit 64 bits.
const GFNS: u64 = 1 << (64 - PAGE_SHIFT);

/// A message of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Frame {
    /// Begins each connection. [`Range`](Self::Range)s follow, and an [`EndOfRound`](Self::EndOfRound) with
    /// number 0.
    Hello {
        /// Number of ranges.
        ranges: u64,
    },
    /// A range of guest memory.
    Range(MemoryRange),
    /// Pages whose contents follow, at most 64, with the checksum over both.
    Pages(Span<Gfn>, u64),
    /// Pages of zeroes, at most 64, with the checksum over their place.
    Zeroes(Span<Gfn>, u64),
    /// All pages of a round were sent.
    EndOfRound(Receipt),
    /// All pages of the last round were sent; the guest is halted.
    End(Receipt),
    /// The receiver has this round.
    Received(Receipt),
    /// The guest is the receiver's.
    Go,
    /// The migration is cancelled.
    Cancel,
}

/// A round, as seen by one side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    /// Number of the round, from 1; 0 for the beginning of a connection.
    pub round: u64,
    /// Number of pages, including zero pages.
    pub pages: u32,
    /// Checksum over its frames, its number, and whether it is the last.
    pub sum: u64,
}

impl Frame {
    /// Returns the fields kind, pages, place and number.
    fn fields(self) -> (u32, u32, u64, u64) {
        let of_round = |kind, Receipt { round, pages, sum }| (kind, pages, round, sum);
        match self {
            Self::Hello { ranges } => (1, VERSION, ranges, MAGIC),
            // A slot has fewer than 2³¹ pages, the other two at most MOST_PAGES.
            Self::Range(range) => (2, range.gfns.len() as u32, range.gfns.start.0, range.slot.0.into()),
            Self::Pages(gfns, sum) => (3, gfns.len() as u32, gfns.start.0, sum),
            Self::Zeroes(gfns, sum) => (4, gfns.len() as u32, gfns.start.0, sum),
            Self::EndOfRound(receipt) => of_round(5, receipt),
            Self::End(receipt) => of_round(6, receipt),
            Self::Received(receipt) => of_round(7, receipt),
            Self::Go => (8, 0, 0, 0),
            Self::Cancel => (9, 0, 0, 0),
        }
    }

    pub(crate) fn encode(self) -> [u8; FRAME] {
        let (kind, pages, place, number) = self.fields();
        let mut bytes = [0; FRAME];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&pages.to_le_bytes());
        bytes[8..16].copy_from_slice(&place.to_le_bytes());
        bytes[16..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    fn decode(bytes: [u8; FRAME]) -> Result<Self, WireError> {
        let short = |at: usize| u32::from_le_bytes(array::from_fn(|byte| bytes[at + byte]));
        let long = |at: usize| u64::from_le_bytes(array::from_fn(|byte| bytes[at + byte]));
        let (kind, pages, place, number) = (short(0), short(4), long(8), long(16));
        let gfns = |most: u64| match place.checked_add(pages.into()) {
            Some(end) if pages > 0 && u64::from(pages) <= most && end <= GFNS => {
                Ok(Span::new(Gfn(place), Gfn(end)))
            }
            _ => Err(WireError::Length(pages.into())),
        };
        let receipt = Receipt { round: place, pages, sum: number };
        let frame = match kind {
            1 if number != MAGIC => return Err(WireError::NotOurs(number)),
            1 if pages != VERSION => return Err(WireError::Version(pages)),
            1 => Self::Hello { ranges: place },
            2 => Self::Range(MemoryRange { slot: SlotId(number as u32), gfns: gfns(u32::MAX.into())? }),
            3 => Self::Pages(gfns(MOST_PAGES)?, number),
            4 => Self::Zeroes(gfns(MOST_PAGES)?, number),
            5 => Self::EndOfRound(receipt),
            6 => Self::End(receipt),
            7 => Self::Received(receipt),
            8 => Self::Go,
            9 => Self::Cancel,
            kind => return Err(WireError::Kind(kind)),
        };
        // Each frame has exactly one encoding.
        if frame.encode() == bytes { Ok(frame) } else { Err(WireError::Unused(frame)) }
    }
}

/// The sending end of a connection.
pub(crate) struct Writing<W: Write> {
    out: BufWriter<W>,
    round: Tally,
    /// Bytes sent so far.
    pub(crate) bytes: u64,
}

impl<W: Write> Writing<W> {
    /// Starts on a new connection.
    pub(crate) fn new(out: W) -> Self {
        Self { out: BufWriter::with_capacity(64 << 10, out), round: Tally::default(), bytes: 0 }
    }

    /// Sends `Hello` and the ranges. Does not wait.
    pub(crate) fn greet(&mut self, ranges: &[MemoryRange]) -> Result<(), WireError> {
        self.write_counted(Frame::Hello { ranges: ranges.len() as u64 }, 0)?;
        ranges.iter().try_for_each(|&range| self.write_counted(Frame::Range(range), 0))?;
        self.end_round(0, false).map(drop)
    }

    /// Sends at most [`MOST_PAGES`] pages with their contents.
    pub(crate) fn pages(&mut self, gfns: Span<Gfn>, contents: &[u8]) -> Result<(), WireError> {
        debug_assert!(gfns.len() <= MOST_PAGES && contents.len() as u64 == gfns.len() * PAGE_SIZE);
        self.write_counted(Frame::Pages(gfns, sum_of(gfns, contents)), gfns.len())?;
        self.write(contents)
    }

    /// Sends that at most [`MOST_PAGES`] pages are zero.
    pub(crate) fn zeroes(&mut self, gfns: Span<Gfn>) -> Result<(), WireError> {
        self.write_counted(Frame::Zeroes(gfns, sum_of(gfns, &[])), gfns.len())
    }

    /// Ends the round, and returns the receipt that the other side must have.
    pub(crate) fn end_round(&mut self, round: u64, last: bool) -> Result<Receipt, WireError> {
        let receipt = std::mem::take(&mut self.round).receipt(round, last);
        self.send(if last { Frame::End(receipt) } else { Frame::EndOfRound(receipt) })?;
        Ok(receipt)
    }

    /// Sends a frame without contents, and everything before it.
    pub(crate) fn send(&mut self, frame: Frame) -> Result<(), WireError> {
        self.write(&frame.encode())?;
        self.flush()
    }

    /// Flushes everything to the stream.
    pub(crate) fn flush(&mut self) -> Result<(), WireError> {
        Ok(self.out.flush()?)
    }

    /// Returns the stream, to read from it.
    pub(crate) fn stream(&mut self) -> &mut W {
        self.out.get_mut()
    }

    fn write_counted(&mut self, frame: Frame, pages: u64) -> Result<(), WireError> {
        let frame = frame.encode();
        self.round.add(&frame, pages);
        self.write(&frame)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        self.bytes += bytes.len() as u64;
        Ok(self.out.write_all(bytes)?)
    }
}

/// The receiving end.
pub(crate) struct Reading<R: Read> {
    from: R,
    round: Tally,
}

impl<R: Read> Reading<R> {
    /// Starts on a new connection.
    pub(crate) fn new(from: R) -> Self {
        Self { from, round: Tally::default() }
    }

    /// Returns the stream.
    pub(crate) fn stream(&mut self) -> &mut R {
        &mut self.from
    }

    /// Returns the next frame. Stores contents of [`Frame::Pages`] at the start of `contents`, which has room
    /// for [`MOST_PAGES`] or is empty. Verifies the ends of rounds.
    pub(crate) fn next(&mut self, contents: &mut [u8]) -> Result<Frame, WireError> {
        let mut bytes = [0; FRAME];
        self.from.read_exact(&mut bytes)?;
        let frame = Frame::decode(bytes)?;
        match frame {
            Frame::Pages(gfns, sum) => {
                let len = (gfns.len() * PAGE_SIZE) as usize;
                // A caller that passes no room expects another frame.
                let contents = contents.get_mut(..len).ok_or(WireError::Unexpected(frame))?;
                self.from.read_exact(contents)?;
                self.pages(&bytes, gfns, sum == sum_of(gfns, contents))?;
            }
            Frame::Zeroes(gfns, sum) => self.pages(&bytes, gfns, sum == sum_of(gfns, &[]))?,
            Frame::Hello { .. } | Frame::Range(_) => self.round.add(&bytes, 0),
            Frame::EndOfRound(there) | Frame::End(there) => {
                let last = matches!(frame, Frame::End(_));
                let here = std::mem::take(&mut self.round).receipt(there.round, last);
                if here != there {
                    return Err(WireError::Differs { here, there });
                }
            }
            _ => {}
        }
        Ok(frame)
    }

    /// Counts pages, and refuses damaged ones: they could be written where the repeated round writes nothing.
    fn pages(&mut self, frame: &[u8], gfns: Span<Gfn>, same: bool) -> Result<(), WireError> {
        self.round.add(frame, gfns.len());
        if same { Ok(()) } else { Err(WireError::Damaged(gfns)) }
    }

    /// Waits for the confirmation of the round `sent`.
    pub(crate) fn receipt(&mut self, sent: Receipt) -> Result<(), WireError> {
        match self.next(&mut [])? {
            Frame::Received(there) if there == sent => Ok(()),
            Frame::Received(there) => Err(WireError::Differs { here: sent, there }),
            other => Err(WireError::Unexpected(other)),
        }
    }
}

/// Returns the checksum over pages and their place. Zero pages have no contents.
fn sum_of(gfns: Span<Gfn>, contents: &[u8]) -> u64 {
    let mut sum = Sum::default();
    sum.add(&gfns.start.0.to_le_bytes());
    sum.add(&gfns.end.0.to_le_bytes());
    sum.add(contents);
    sum.value()
}

/// Running totals of a round.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    pages: u32,
    sum: Sum,
}

impl Tally {
    fn add(&mut self, frame: &[u8], pages: u64) {
        // Each slot has fewer than 2³¹ pages; the sum is modulo 2³² on both sides.
        self.pages = self.pages.wrapping_add(pages as u32);
        self.sum.add(frame);
    }

    fn receipt(mut self, round: u64, last: bool) -> Receipt {
        self.add(&round.to_le_bytes(), 0);
        self.add(&[last.into()], 0);
        Receipt { round, pages: self.pages, sum: self.sum.value() }
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
