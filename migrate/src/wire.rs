//! The stream between two machines: frames of 24 bytes, and pages behind some of them.
//!
//! ```text
//! sender                                       receiver
//! Hello, Range, Range, …, EndOfRound 0         makes the memory, or finds it as it was left
//! Pages (and their contents), Zeroes, …        as often as there are pages in the round
//! EndOfRound ────────────────────────────────▶ compares: so many pages, this checksum
//!            ◀──────────────────────────────── Received: the same, as it came
//! …
//! End        ────────────────────────────────▶ as EndOfRound, of the last round
//!            ◀──────────────────────────────── Received
//! Go                                           from here on the guest is the receiver's
//! ```
//! A round is received once both sides have said so; until then it never was, whatever part of it has arrived. Each side
//! computes the checksum over the frames that it has sent or read itself. Pages have a checksum of their own, which is compared
//! before they are written. All numbers are little-endian. A field that a
//! frame does not use is zero.

use crate::checksum::Sum;
use crate::error::WireError;
use crate::guest::MemoryRange;
use slat::{Gfn, PAGE_SHIFT, PAGE_SIZE, SlotId, Span};
use std::array;
use std::io::{BufWriter, Read, Write};

/// Bytes of a frame, without pages.
pub(crate) const FRAME: usize = 24;
/// Pages of one frame at most.
pub(crate) const MOST_PAGES: u64 = 64;
/// The first bytes of a stream: what it is, and which of its kind.
const MAGIC: u64 = u64::from_le_bytes(*b"slat mig");
pub(crate) const VERSION: u32 = 2;
/// Frames are below this: the bytes of all of them have addresses of 64 bits.
const GFNS: u64 = 1 << (64 - PAGE_SHIFT);

/// A message of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Frame {
    /// The beginning of each connection. So many [`Range`](Self::Range)s follow, and an [`EndOfRound`](Self::EndOfRound) of number 0.
    Hello {
        /// How many.
        ranges: u64,
    },
    /// Guest memory that there is.
    Range(MemoryRange),
    /// Pages with contents, which follow, and the checksum over both: 64 pages at most.
    Pages(Span<Gfn>, u64),
    /// Pages of zeroes, and the checksum over where they are: 64 at most.
    Zeroes(Span<Gfn>, u64),
    /// All pages of a round have been sent.
    EndOfRound(Receipt),
    /// The same of the last round: the guest stands still.
    End(Receipt),
    /// What has come.
    Received(Receipt),
    /// The guest is the receiver's.
    Go,
    /// There will be no migration.
    Cancel,
}

/// A round, as one side has seen it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    /// Its number, from 1; 0 is what a connection begins with.
    pub round: u64,
    /// Pages in it, those of zeroes included.
    pub pages: u32,
    /// The checksum over its frames, its number and whether it is the last.
    pub sum: u64,
}

impl Frame {
    /// Kind, pages, place, number.
    fn fields(self) -> (u32, u32, u64, u64) {
        let of_round = |kind, Receipt { round, pages, sum }| (kind, pages, round, sum);
        match self {
            Self::Hello { ranges } => (1, VERSION, ranges, MAGIC),
            // A slot has less than 2³¹ pages, the other two at most MOST_PAGES.
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
        // Each frame has one spelling.
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
    /// Over a connection on which nothing was said yet.
    pub(crate) fn new(out: W) -> Self {
        Self { out: BufWriter::with_capacity(64 << 10, out), round: Tally::default(), bytes: 0 }
    }

    /// Says hello, and which memory there is. Nothing is waited for.
    pub(crate) fn greet(&mut self, ranges: &[MemoryRange]) -> Result<(), WireError> {
        self.send_counted(Frame::Hello { ranges: ranges.len() as u64 }, 0)?;
        ranges.iter().try_for_each(|&range| self.send_counted(Frame::Range(range), 0))?;
        self.end_round(0, false).map(drop)
    }

    /// Sends pages, [`MOST_PAGES`] at most, with their contents.
    pub(crate) fn pages(&mut self, gfns: Span<Gfn>, contents: &[u8]) -> Result<(), WireError> {
        debug_assert!(gfns.len() <= MOST_PAGES && contents.len() as u64 == gfns.len() * PAGE_SIZE);
        self.send_counted(Frame::Pages(gfns, sum_of(gfns, contents)), gfns.len())?;
        self.bytes += contents.len() as u64;
        Ok(self.out.write_all(contents)?)
    }

    /// Says that pages, [`MOST_PAGES`] at most, are zero.
    pub(crate) fn zeroes(&mut self, gfns: Span<Gfn>) -> Result<(), WireError> {
        self.send_counted(Frame::Zeroes(gfns, sum_of(gfns, &[])), gfns.len())
    }

    /// Ends the round, and says what the other side must have seen of it.
    pub(crate) fn end_round(&mut self, round: u64, last: bool) -> Result<Receipt, WireError> {
        let receipt = std::mem::take(&mut self.round).receipt(round, last);
        self.send(if last { Frame::End(receipt) } else { Frame::EndOfRound(receipt) })?;
        self.flush()?;
        Ok(receipt)
    }

    /// Any frame without contents.
    pub(crate) fn send(&mut self, frame: Frame) -> Result<(), WireError> {
        self.bytes += FRAME as u64;
        Ok(self.out.write_all(&frame.encode())?)
    }

    /// Hands all that was sent to the stream.
    pub(crate) fn flush(&mut self) -> Result<(), WireError> {
        Ok(self.out.flush()?)
    }

    /// The other direction of the stream.
    pub(crate) fn stream(&mut self) -> &mut W {
        self.out.get_mut()
    }

    fn send_counted(&mut self, frame: Frame, pages: u64) -> Result<(), WireError> {
        self.round.add(&frame.encode(), pages);
        self.send(frame)
    }
}

/// The receiving end.
pub(crate) struct Reading<R: Read> {
    from: R,
    round: Tally,
}

impl<R: Read> Reading<R> {
    /// Over a connection on which nothing was said yet.
    pub(crate) fn new(from: R) -> Self {
        Self { from, round: Tally::default() }
    }

    /// The stream, as it was given.
    pub(crate) fn stream(&mut self) -> &mut R {
        &mut self.from
    }

    /// The next frame. Contents of [`Frame::Pages`] are in the beginning of `contents`; it has room for [`MOST_PAGES`], or
    /// there must be none. The ends of rounds have been compared with what came.
    pub(crate) fn next(&mut self, contents: &mut [u8]) -> Result<Frame, WireError> {
        let mut bytes = [0; FRAME];
        self.from.read_exact(&mut bytes)?;
        let frame = Frame::decode(bytes)?;
        match frame {
            Frame::Pages(gfns, sum) => {
                let len = (gfns.len() * PAGE_SIZE) as usize;
                // A caller without room for contents expects another frame.
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

    /// Counts pages that came as they were sent. Others would be written where the round that is tried again writes nothing.
    fn pages(&mut self, frame: &[u8], gfns: Span<Gfn>, same: bool) -> Result<(), WireError> {
        self.round.add(frame, gfns.len());
        if same { Ok(()) } else { Err(WireError::Damaged(gfns)) }
    }

    /// Waits until the other side has received a round as it was sent.
    pub(crate) fn receipt(&mut self, sent: Receipt) -> Result<(), WireError> {
        match self.next(&mut [])? {
            Frame::Received(there) if there == sent => Ok(()),
            Frame::Received(there) => Err(WireError::Differs { here: sent, there }),
            other => Err(WireError::Unexpected(other)),
        }
    }
}

/// The checksum over pages and where they are. Pages of zeroes have no contents.
fn sum_of(gfns: Span<Gfn>, contents: &[u8]) -> u64 {
    let mut sum = Sum::default();
    sum.add(&gfns.start.0.to_le_bytes());
    sum.add(&gfns.end.0.to_le_bytes());
    sum.add(contents);
    sum.value()
}

/// What has gone by in a round.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    pages: u32,
    sum: Sum,
}

impl Tally {
    fn add(&mut self, frame: &[u8], pages: u64) {
        // As many as slots have: below 2³¹ each, and counted modulo 2³² on both sides.
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
