//! The stream between two machines: frames of 24 bytes, and pages behind some of them.
//!
//! ```text
//! sender                                       receiver
//! Hello, Slot, Slot, …                         builds the machine, or finds it as it was left
//! Pages (and their contents), Zeroes, …        as often as there are pages in the round
//! EndOfRound ────────────────────────────────▶ compares: so many pages, this checksum
//!            ◀──────────────────────────────── Received: the same, as it came
//! …
//! End        ────────────────────────────────▶ as EndOfRound, of the last round
//!            ◀──────────────────────────────── Received
//! Go                                           from here on the guest is the receiver's
//! ```
//! A round is received once both sides have said so; until then it never was, whatever part of it has arrived. Each side
//! computes the checksum over what it has sent or read itself, frames included. All numbers are little-endian.

use slat::{Gfn, PAGE_SIZE, Slot, SlotId, Span};
use slat_cli::checksum::Sum;
use std::array;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};

/// Bytes of a frame, without pages.
const FRAME: usize = 24;
/// Pages of one frame at most.
pub const MOST_PAGES: u64 = 64;
/// The first bytes of a stream: what it is, and which of its kind.
const MAGIC: u64 = u64::from_le_bytes(*b"slat mig");
const VERSION: u32 = 1;

/// What is said. See the module's header for the order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame {
    /// The beginning of each connection; so many slots follow.
    Hello { slots: u64 },
    /// Guest memory that there is.
    Slot { id: SlotId, gfns: Span<Gfn> },
    /// Pages with contents, which follow: [`MOST_PAGES`] at most.
    Pages(Span<Gfn>),
    /// Pages of zeroes.
    Zeroes(Span<Gfn>),
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
    /// Its number, from 1.
    pub round: u64,
    /// Pages in it, those of zeroes included.
    pub pages: u32,
    /// Over its frames and contents.
    pub sum: u64,
}

/// Why a connection is no good any more. What its round has brought does not count.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The other side is gone, in the middle of it.
    #[error("the other side closed the connection")]
    Closed,
    /// The system could not send or receive.
    #[error(transparent)]
    Io(io::Error),
    /// What came first is no migration.
    #[error("a stream that begins with {0:#x} is no migration")]
    NotOurs(u64),
    /// A migration by other rules.
    #[error("version {} of the stream; this side has {}", .0, VERSION)]
    Version(u32),
    /// No frame is of this kind.
    #[error("no frame is of kind {0}")]
    Kind(u32),
    /// A frame of so many pages.
    #[error("a frame of {} pages; from 1 to {} are possible", .0, MOST_PAGES)]
    Length(u64),
    /// Pages that are in no slot.
    #[error("the frames {:#x}..{:#x} are in no slot", .0.start.0, .0.end.0)]
    Place(Span<Gfn>),
    /// Not the frame that has to come now.
    #[error("{0:?} has no place here")]
    Unexpected(Frame),
    /// The sides do not agree on what was in this round.
    #[error("round {}: {} pages with checksum {:#x} here, round {}: {} with {:#x} there",
        here.round, here.pages, here.sum, there.round, there.pages, there.sum)]
    Differs {
        /// What this side has seen.
        here: Receipt,
        /// What the other one has.
        there: Receipt,
    },
}

impl From<io::Error> for WireError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

impl Frame {
    /// Kind, pages, place, number.
    fn fields(self) -> (u32, u32, u64, u64) {
        let of_round = |kind, Receipt { round, pages, sum }| (kind, pages, round, sum);
        match self {
            Self::Hello { slots } => (1, VERSION, slots, MAGIC),
            // A slot has less than 2³¹ pages, the other two at most MOST_PAGES.
            Self::Slot { id, gfns } => (2, gfns.len() as u32, gfns.start.0, id.0.into()),
            Self::Pages(gfns) => (3, gfns.len() as u32, gfns.start.0, 0),
            Self::Zeroes(gfns) => (4, gfns.len() as u32, gfns.start.0, 0),
            Self::EndOfRound(receipt) => of_round(5, receipt),
            Self::End(receipt) => of_round(6, receipt),
            Self::Received(receipt) => of_round(7, receipt),
            Self::Go => (8, 0, 0, 0),
            Self::Cancel => (9, 0, 0, 0),
        }
    }

    fn encode(self) -> [u8; FRAME] {
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
            Some(end) if pages > 0 && u64::from(pages) <= most => Ok(Span::new(Gfn(place), Gfn(end))),
            _ => Err(WireError::Length(pages.into())),
        };
        let receipt = Receipt { round: place, pages, sum: number };
        match kind {
            1 if number != MAGIC => Err(WireError::NotOurs(number)),
            1 if pages != VERSION => Err(WireError::Version(pages)),
            1 => Ok(Self::Hello { slots: place }),
            2 => Ok(Self::Slot { id: SlotId(number as u32), gfns: gfns(u32::MAX.into())? }),
            3 => Ok(Self::Pages(gfns(MOST_PAGES)?)),
            4 => Ok(Self::Zeroes(gfns(MOST_PAGES)?)),
            5 => Ok(Self::EndOfRound(receipt)),
            6 => Ok(Self::End(receipt)),
            7 => Ok(Self::Received(receipt)),
            8 => Ok(Self::Go),
            9 => Ok(Self::Cancel),
            kind => Err(WireError::Kind(kind)),
        }
    }
}

/// The sending end of a connection.
#[derive(Debug)]
pub struct Writing<W: Write> {
    out: BufWriter<W>,
    round: Tally,
    /// Bytes sent so far.
    pub bytes: u64,
}

impl<W: Write> Writing<W> {
    /// Over a connection on which nothing was said yet.
    pub fn new(out: W) -> Self {
        Self { out: BufWriter::with_capacity(64 << 10, out), round: Tally::default(), bytes: 0 }
    }

    /// Says hello, and which memory there is. Nothing is waited for.
    pub fn greet(&mut self, slots: &[Slot]) -> Result<(), WireError> {
        self.send(Frame::Hello { slots: slots.len() as u64 })?;
        slots.iter().try_for_each(|slot| self.send(Frame::Slot { id: slot.id, gfns: slot.gfns }))
    }

    /// Sends pages, [`MOST_PAGES`] at most, with their contents.
    pub fn pages(&mut self, gfns: Span<Gfn>, contents: &[u8]) -> Result<(), WireError> {
        debug_assert!(gfns.len() <= MOST_PAGES && contents.len() as u64 == gfns.len() * PAGE_SIZE);
        self.send_counted(Frame::Pages(gfns), gfns.len())?;
        self.round.sum.add(contents);
        self.bytes += contents.len() as u64;
        Ok(self.out.write_all(contents)?)
    }

    /// Says that pages, [`MOST_PAGES`] at most, are zero.
    pub fn zeroes(&mut self, gfns: Span<Gfn>) -> Result<(), WireError> {
        self.send_counted(Frame::Zeroes(gfns), gfns.len())
    }

    /// Ends the round, and says what the other side must have seen of it.
    pub fn end_round(&mut self, round: u64, last: bool) -> Result<Receipt, WireError> {
        let receipt = std::mem::take(&mut self.round).receipt(round);
        self.send(if last { Frame::End(receipt) } else { Frame::EndOfRound(receipt) })?;
        self.flush()?;
        Ok(receipt)
    }

    /// Any frame without contents.
    pub fn send(&mut self, frame: Frame) -> Result<(), WireError> {
        self.bytes += FRAME as u64;
        Ok(self.out.write_all(&frame.encode())?)
    }

    /// Hands all that was sent to the system.
    pub fn flush(&mut self) -> Result<(), WireError> {
        Ok(self.out.flush()?)
    }

    fn send_counted(&mut self, frame: Frame, pages: u64) -> Result<(), WireError> {
        self.round.add(&frame.encode(), pages);
        self.send(frame)
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct Reading<R: Read> {
    from: BufReader<R>,
    round: Tally,
}

impl<R: Read> Reading<R> {
    /// Over a connection on which nothing was said yet.
    pub fn new(from: R) -> Self {
        Self { from: BufReader::with_capacity(64 << 10, from), round: Tally::default() }
    }

    /// The next frame. Contents of [`Frame::Pages`] are in the beginning of `contents`; it has room for [`MOST_PAGES`], or
    /// there must be none. The ends of rounds have been compared with what came.
    pub fn next(&mut self, contents: &mut [u8]) -> Result<Frame, WireError> {
        let mut bytes = [0; FRAME];
        self.from.read_exact(&mut bytes)?;
        let frame = Frame::decode(bytes)?;
        match frame {
            Frame::Pages(gfns) => {
                let len = (gfns.len() * PAGE_SIZE) as usize;
                // Whoever has no room for contents expects something else.
                let contents = contents.get_mut(..len).ok_or(WireError::Unexpected(frame))?;
                self.round.add(&bytes, gfns.len());
                self.from.read_exact(contents)?;
                self.round.sum.add(contents);
            }
            Frame::Zeroes(gfns) => self.round.add(&bytes, gfns.len()),
            Frame::EndOfRound(there) | Frame::End(there) => {
                let here = std::mem::take(&mut self.round).receipt(there.round);
                if here != there {
                    return Err(WireError::Differs { here, there });
                }
            }
            _ => {}
        }
        Ok(frame)
    }

    /// Waits until the other side has received a round as it was sent.
    pub fn receipt(&mut self, sent: Receipt) -> Result<(), WireError> {
        match self.next(&mut [])? {
            Frame::Received(there) if there == sent => Ok(()),
            Frame::Received(there) => Err(WireError::Differs { here: sent, there }),
            other => Err(WireError::Unexpected(other)),
        }
    }
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

    fn receipt(self, round: u64) -> Receipt {
        Receipt { round, pages: self.pages, sum: self.sum.value() }
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
