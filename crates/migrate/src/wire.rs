//! The stream between two machines: frames of 24 bytes, some followed by pages.
//!
//! ```text
//! sender                                       receiver
//! Hello, Identity, Received(c),
//!     Range, Range, …, EndOfRound 0 ─────────▶ compares: does it have rounds of this identity?
//!            ◀──────────────────────────────── Ticket(t), Begin(l), Received(r); or Refused and a reason
//! Begin(t)   ────────────────────────────────▶ creates the memory, keeps it, or makes all of it zero
//!            ◀──────────────────────────────── Welcome; or Refused and a reason
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
//!
//! **Each connection compares the identity and the progress of the migration.** `Identity` is a number of 128 bits
//! that the sender draws for each migration of a log. `c` is the receipt of the last round that the receiver has
//! confirmed to the sender, and `r` that of the last round that is complete at the receiver; round 0 with zeroes
//! stands for no round. `l` is the ticket of the last connection that has begun at the receiver under this identity. A
//! receiver that holds another identity, or none, has no round, and 0 for `l`.
//!
//! * If `l` is 0 or this sender's, and `r` is `c`, or an attempt at the round after it, which the sender has sent and
//!   not seen confirmed, the receiver lacks only pages that the sender's log has. The sender answers `Begin`, and continues with round
//!   `c + 1`.
//! * Otherwise the receiver lacks pages that the log has forgotten: it was restarted, has another guest, or another
//!   sender has come between. The sender marks every page of its log, draws a new identity, and sends another
//!   `Hello` with no round on the same connection.
//!
//! At a `Begin` under a new identity, the receiver makes all its memory zero and forgets the identity before. A
//! `Hello` alone changes nothing there. The `Ticket` is drawn for each connection: bytes that were written for
//! another connection cannot continue after it.
//!
//! `Refused` is the receiver's last frame. It is followed by the reason, at most 1024 bytes of UTF-8. The receiver
//! sends it if another connection would not help; the sender then ends.
//!
//! Version 2 had no identity: `Hello, Range, …, EndOfRound 0`, and no answer.

use crate::checksum::Sum;
use crate::error::WireError;
use crate::frame::{Frame, MOST_PAGES, MemoryRange, Receipt, VERSION};
use crate::identity::Known;
use slat::{Gfn, PAGE_SHIFT, PAGE_SIZE, SlotId, Span};
use std::array;
use std::io::{self, Read, Write};

/// Bytes of a frame without its pages.
pub(crate) const FRAME: usize = 24;
/// The first bytes of a stream.
const MAGIC: u64 = u64::from_le_bytes(*b"slat mig");
/// Most bytes of a reason.
pub(crate) const MOST_TEXT: usize = 1024;
/// Upper bound of guest frames: their addresses fit 64 bits.
const GFNS: u64 = 1 << (64 - PAGE_SHIFT);

impl Frame {
    /// Returns the fields kind, pages, place and number.
    fn fields(self) -> (u32, u32, u64, u64) {
        let of_number = |kind, number: u128| (kind, 0, number as u64, (number >> 64) as u64);
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
            Self::Identity(identity) => of_number(10, identity),
            Self::Ticket(ticket) => of_number(11, ticket),
            Self::Begin(ticket) => of_number(12, ticket),
            Self::Welcome => (13, 0, 0, 0),
            Self::Refused(len, sum) => (14, len, 0, sum),
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
        let long_number = u128::from(number) << 64 | u128::from(place);
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
            10 => Self::Identity(long_number),
            11 => Self::Ticket(long_number),
            12 => Self::Begin(long_number),
            13 => Self::Welcome,
            14 if pages as usize > MOST_TEXT => return Err(WireError::Length(pages.into())),
            14 => Self::Refused(pages, number),
            kind => return Err(WireError::Kind(kind)),
        };
        // Each frame has exactly one encoding.
        if frame.encode() == bytes { Ok(frame) } else { Err(WireError::Unused(frame)) }
    }
}

/// Bytes that are collected before they are written.
const BUFFER: usize = 64 << 10;

/// The sending end of a connection.
///
/// After an error nothing is written any more, on drop neither: the sender has taken the error for an end, and a `Go`
/// that is written later would run the guest on both sides.
pub(crate) struct Writing<W: Write> {
    out: W,
    buffer: Vec<u8>,
    broken: bool,
    round: Tally,
    /// Bytes sent so far.
    pub(crate) bytes: u64,
}

impl<W: Write> Writing<W> {
    /// Starts on a new connection.
    pub(crate) fn new(out: W) -> Self {
        Self { out, buffer: Vec::with_capacity(BUFFER), broken: false, round: Tally::default(), bytes: 0 }
    }

    /// Sends `Hello`, the identity, the last round that the receiver has confirmed, and the ranges. Does not wait.
    pub(crate) fn greet(&mut self, known: &Known, ranges: &[MemoryRange]) -> Result<(), WireError> {
        self.write_counted(Frame::Hello { ranges: ranges.len() as u64 }, 0)?;
        self.write_counted(Frame::Identity(known.identity), 0)?;
        self.write_counted(Frame::Received(known.confirmed), 0)?;
        ranges.iter().try_for_each(|&range| self.write_counted(Frame::Range(range), 0))?;
        let receipt = self.receipt(0, false);
        self.send(Frame::EndOfRound(receipt))
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

    /// Returns the receipt of the round that ends, which the other side must have.
    pub(crate) fn receipt(&mut self, round: u64, last: bool) -> Receipt {
        std::mem::take(&mut self.round).receipt(round, last)
    }

    /// Sends a frame without contents, and everything before it.
    pub(crate) fn send(&mut self, frame: Frame) -> Result<(), WireError> {
        self.write(&frame.encode())?;
        self.flush()
    }

    /// Writes everything to the stream.
    pub(crate) fn flush(&mut self) -> Result<(), WireError> {
        self.write_out(&[])?;
        self.io(W::flush)
    }

    /// Sends that this side cannot receive the guest, and why, with everything before it.
    pub(crate) fn refuse(&mut self, why: &str) -> Result<(), WireError> {
        let end = (0..=why.len().min(MOST_TEXT)).rfind(|&end| why.is_char_boundary(end)).unwrap_or(0);
        let text = &why.as_bytes()[..end];
        self.write(&Frame::Refused(end as u32, sum_of_text(text)).encode())?;
        self.write(text)?;
        self.flush()
    }

    /// Returns the stream, to read from it.
    pub(crate) fn stream(&mut self) -> &mut W {
        &mut self.out
    }

    fn write_counted(&mut self, frame: Frame, pages: u64) -> Result<(), WireError> {
        let frame = frame.encode();
        self.round.add(&frame, pages);
        self.write(&frame)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        if self.buffer.len() + bytes.len() > BUFFER {
            self.write_out(bytes)?;
        } else {
            self.buffer.extend_from_slice(bytes);
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Writes what is collected, and `more`.
    fn write_out(&mut self, more: &[u8]) -> Result<(), WireError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        self.io(|out| {
            out.write_all(&buffer)?;
            out.write_all(more)
        })?;
        buffer.clear();
        self.buffer = buffer;
        Ok(())
    }

    fn io(&mut self, write: impl FnOnce(&mut W) -> io::Result<()>) -> Result<(), WireError> {
        if self.broken {
            return Err(WireError::Closed);
        }
        // Also if `write` panics.
        self.broken = true;
        write(&mut self.out)?;
        self.broken = false;
        Ok(())
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
            Frame::Hello { .. } | Frame::Identity(_) | Frame::Received(_) | Frame::Range(_) => {
                self.round.add(&bytes, 0);
            }
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
        match self.answer()? {
            Frame::Received(there) if there == sent => Ok(()),
            Frame::Received(there) => Err(WireError::Differs { here: sent, there }),
            other => Err(WireError::Unexpected(other)),
        }
    }

    /// Waits for the ticket of this connection, that of the last one, and the last round that is complete at the receiver.
    pub(crate) fn offer(&mut self) -> Result<(u128, u128, Receipt), WireError> {
        match (self.answer()?, self.answer()?, self.answer()?) {
            (Frame::Ticket(ticket), Frame::Begin(last), Frame::Received(has)) => Ok((ticket, last, has)),
            (Frame::Ticket(_), Frame::Begin(_), other) | (Frame::Ticket(_), other, _) | (other, ..) => {
                Err(WireError::Unexpected(other))
            }
        }
    }

    /// Waits until the receiver has memory for the migration.
    pub(crate) fn welcome(&mut self) -> Result<(), WireError> {
        match self.answer()? {
            Frame::Welcome => Ok(()),
            other => Err(WireError::Unexpected(other)),
        }
    }

    /// Returns the receiver's next frame; an error if it refuses the guest.
    fn answer(&mut self) -> Result<Frame, WireError> {
        let (len, sum) = match self.next(&mut [])? {
            Frame::Refused(len, sum) => (len, sum),
            frame => return Ok(frame),
        };
        let mut text = vec![0; len as usize];
        self.from.read_exact(&mut text)?;
        if sum_of_text(&text) != sum {
            return Err(WireError::Unexpected(Frame::Refused(len, sum)));
        }
        // It may be printed on a terminal, and comes from another machine.
        let text = String::from_utf8_lossy(&text);
        let printable = text.chars().map(|char| if char.is_control() { ' ' } else { char });
        Err(WireError::Refused(printable.collect()))
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

/// Returns the checksum over a reason.
fn sum_of_text(text: &[u8]) -> u64 {
    let mut sum = Sum::default();
    sum.add(text);
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
