//! The receiver: creates memory as the stream says, fills it as pages arrive, and hands it over when it is
//! complete.
//!
//! It survives broken connections. A broken connection leaves pages of a round that does not count; the sender
//! gives that round's bits back, connects again, and sends those pages again. Pages of earlier rounds are kept
//! and not sent again. Connections are served one after another, each to its end, so a page of an old
//! connection never overwrites one of the next.
//!
//! Half-filled memory belongs to one migration, which [`Frame::Identity`] names. A connection continues it if its sender
//! and this side agree about the last complete round; [`crate::wire`] says how they find out. Any other sender begins
//! anew, with memory that is zero. If its memory has other ranges, it is refused.
//!
//! The receiver does not trust its input: it checks each frame before it acts, and [`WireError`] says what was
//! wrong. Pages are written after their own checksum was verified, and count after that of their round was
//! verified. Without the first check, a damaged frame could write a page to a wrong place, and the repeated
//! round would not correct it.

use crate::error::{Interrupted, MigrateError, WireError};
use crate::frame::{Frame, MOST_PAGES, MOST_RANGES, MemoryRange, Receipt};
use crate::identity::{NO_TICKET, Nonces};
use crate::source_target::Target;
use crate::wire::{Reading, Writing};
use slat::{Gfn, PAGE_SIZE, Span};
use std::collections::HashSet;
use std::io::{self, BufReader, Read, Write};

/// Most frames that are read after the target has failed.
const DRAINED: u64 = 256;
/// Pages that are made zero at once.
const ZEROED: u64 = 512;

/// The receiving end of a migration. [`PreCopy`](crate::PreCopy) is the sending end.
///
/// The stream is neither encrypted nor authenticated. Its contents are checked, so a stranger can only make the
/// receiver refuse a migration or receive the stranger's guest. Use TLS or a tunnel if strangers can connect.
#[derive(Debug)]
pub struct Receiver<T> {
    target: T,
    most_bytes: u64,
    tickets: Nonces,
    /// In order of frames; `None` until the memory is created.
    ranges: Option<Vec<MemoryRange>>,
    /// The migration to which the contents of the memory belong; `None` if they belong to none.
    holds: Option<Holds>,
    /// Whether the memory may be other than zero.
    written: bool,
    /// The guest may run here, or the target has failed.
    over: bool,
    /// Negative control.
    #[cfg(test)]
    pub(crate) ignores: Ignores,
}

/// A receiver that is wrong on purpose.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ignores {
    Nothing,
    /// Every sender may continue.
    Identity,
    /// It does not tell which connection was its last.
    Tickets,
}

/// A migration of which this side has rounds.
#[derive(Clone, Copy, Debug)]
struct Holds {
    identity: u128,
    /// The last complete round.
    has: Receipt,
    /// The ticket of the last connection that has begun.
    last: u128,
}

/// The frames that follow a `Hello`.
struct Sender {
    identity: u128,
    /// The last round that it has seen confirmed.
    confirmed: Receipt,
    ranges: Vec<MemoryRange>,
}

impl<T: Target> Receiver<T> {
    /// Receives a guest of at most `most_bytes` of memory into `target`.
    pub fn new(target: T, most_bytes: u64) -> Self {
        Self {
            target,
            most_bytes,
            tickets: Nonces::RANDOM,
            ranges: None,
            holds: None,
            written: false,
            over: false,
            #[cfg(test)]
            ignores: Ignores::Nothing,
        }
    }

    /// Draws the tickets of connections from `next` instead of the operating system's random numbers, for tests.
    pub fn with_nonces(self, next: impl FnMut() -> u128 + Send + 'static) -> Self {
        Self { tickets: Nonces::from_fn(next), ..self }
    }

    /// Serves the connections that `accept` opens, one after another, until the guest may run here. Set
    /// timeouts on the streams: `receive` waits for a silent sender as long as they allow.
    ///
    /// A connection that breaks or is refused leaves earlier rounds in place, and [`Target::refused`] is told. If the
    /// sender then gives up, the error says what was refused last, or why `accept` failed.
    pub fn receive<S: Read + Write>(
        &mut self,
        mut accept: impl FnMut() -> io::Result<S>,
    ) -> Result<(), MigrateError<T::Error>> {
        let mut refused = None;
        loop {
            let stream = accept().map_err(|error| MigrateError::Refused(error.into()))?;
            match self.serve(stream) {
                // The sender only knows that its connections were closed. This is the reason.
                Err(MigrateError::Cancelled) => {
                    return Err(refused.map_or(MigrateError::Cancelled, MigrateError::Refused));
                }
                // Another connection would hear the same.
                result @ Err(MigrateError::Refused(WireError::Over)) => return result,
                Err(MigrateError::Refused(WireError::Closed)) => {}
                Err(MigrateError::Refused(error)) => {
                    self.target.refused(&error);
                    refused = Some(error);
                }
                result => return result,
            }
        }
    }

    /// Serves one connection. After `Ok` the guest may run here. After [`MigrateError::Refused`], serve another
    /// connection if the sender opens one. After [`MigrateError::Cancelled`] another migration may begin. After `Ok` and
    /// any other error this receiver refuses every connection.
    pub fn serve(&mut self, stream: impl Read + Write) -> Result<(), MigrateError<T::Error>> {
        let mut from = Reading::new(BufReader::with_capacity(64 << 10, stream));
        let mut in_round = false;
        let result = self.serve_frames(&mut from, &mut in_round);
        let refuse = |why: &str, from: &mut Reading<BufReader<_>>| {
            // The sender hears it where it waits for an answer, if the connection still holds.
            let _ = Writing::new(from.stream().get_mut()).refuse(why);
        };
        match result {
            Ok(()) => {
                self.over = true;
                Ok(())
            }
            Err(Interrupted::Wire(error)) => {
                if error.is_final() {
                    refuse(&error.to_string(), &mut from);
                }
                Err(MigrateError::Refused(error))
            }
            Err(Interrupted::Over(error)) => {
                self.holds = None;
                if let MigrateError::Guest(error) = &error {
                    self.over = true;
                    refuse(&error.to_string(), &mut from);
                    if in_round {
                        drain(&mut from);
                    }
                }
                Err(error)
            }
        }
    }

    /// Returns the memory.
    pub fn target(&self) -> &T {
        &self.target
    }

    /// Returns the memory, to run the guest.
    pub fn into_target(self) -> T {
        self.target
    }

    fn serve_frames<S: Read + Write>(
        &mut self,
        from: &mut Reading<BufReader<S>>,
        in_round: &mut bool,
    ) -> Result<(), Interrupted<T::Error>> {
        let mut round = self.agree(from)?.round;
        *in_round = true;
        let mut contents = vec![0; (MOST_PAGES * PAGE_SIZE) as usize];
        let mut complete = false;
        loop {
            match from.next(&mut contents)? {
                Frame::Pages(gfns, _) if !complete => {
                    self.look_up(gfns)?;
                    self.written = true;
                    let contents = &contents[..(gfns.len() * PAGE_SIZE) as usize];
                    self.target.write(gfns, contents).map_err(Interrupted::guest)?;
                }
                Frame::Zeroes(gfns, _) if !complete => {
                    self.look_up(gfns)?;
                    self.target.zero(gfns).map_err(Interrupted::guest)?;
                }
                frame @ (Frame::EndOfRound(receipt) | Frame::End(receipt))
                    if !complete && receipt.round == round + 1 =>
                {
                    (round, complete) = (receipt.round, matches!(frame, Frame::End(_)));
                    if let Some(holds) = &mut self.holds {
                        holds.has = receipt;
                    }
                    answer(from, &[Frame::Received(receipt)])?;
                }
                Frame::Go if complete => return Ok(()),
                Frame::Cancel => return Err(Interrupted::Over(MigrateError::Cancelled)),
                other => return Err(WireError::Unexpected(other).into()),
            }
        }
    }

    /// Reads what the sender says of itself until it agrees about the last complete round, or begins anew. Returns the
    /// receipt of the last round that the sender has seen confirmed.
    fn agree<S: Read + Write>(
        &mut self,
        from: &mut Reading<BufReader<S>>,
    ) -> Result<Receipt, Interrupted<T::Error>> {
        let mut frame = from.next(&mut [])?;
        loop {
            let sender = match frame {
                Frame::Hello { ranges } if (1..=MOST_RANGES).contains(&ranges) => {
                    self.sender(from, ranges)?
                }
                Frame::Hello { ranges } if ranges > 0 => return Err(WireError::TooManyRanges(ranges).into()),
                Frame::Cancel => return Err(Interrupted::Over(MigrateError::Cancelled)),
                other => return Err(WireError::Unexpected(other).into()),
            };
            let held = self.held(&sender);
            let (has, last) = held.map_or((Receipt::default(), NO_TICKET), |holds| (holds.has, holds.last));
            #[cfg(test)]
            let last = if self.ignores == Ignores::Tickets { NO_TICKET } else { last };
            let ticket = self.tickets.next();
            answer(from, &[Frame::Ticket(ticket), Frame::Begin(last), Frame::Received(has)])?;
            frame = from.next(&mut [])?;
            if frame != Frame::Begin(ticket) {
                // It begins anew, or this is no answer to the ticket.
                continue;
            }
            // The sender compares the receipts; this side checks the part of the same rule that it can see.
            let confirmed = sender.confirmed;
            if has != confirmed && has.round != confirmed.round + 1 {
                return Err(WireError::Forgotten { has, confirmed }.into());
            }
            if held.is_none() || self.ranges.is_none() {
                self.hold(sender)?;
            }
            if let Some(holds) = &mut self.holds {
                holds.last = ticket;
            }
            answer(from, &[Frame::Welcome])?;
            return Ok(confirmed);
        }
    }

    /// Returns the migration of which this side has rounds, if it is this sender's.
    fn held(&self, sender: &Sender) -> Option<Holds> {
        #[cfg(test)]
        if self.ignores == Ignores::Identity {
            let (identity, has) = (sender.identity, sender.confirmed);
            return Some(Holds { identity, has, last: NO_TICKET });
        }
        self.holds.filter(|holds| holds.identity == sender.identity)
    }

    /// Reads what follows a `Hello`, and refuses memory that cannot be received here.
    fn sender(&self, from: &mut Reading<impl Read>, count: u64) -> Result<Sender, WireError> {
        let (identity, confirmed) = match (from.next(&mut [])?, from.next(&mut [])?) {
            (Frame::Identity(identity), Frame::Received(confirmed)) => (identity, confirmed),
            (Frame::Identity(_), other) | (other, _) => return Err(WireError::Unexpected(other)),
        };
        let (mut ranges, mut bytes, mut end) = (Vec::new(), 0, Gfn(0));
        let (mut slots, mut overlaps) = (HashSet::new(), None);
        for _ in 0..count {
            match from.next(&mut [])? {
                Frame::Range(range) => {
                    if range.gfns.start < end || !slots.insert(range.slot) {
                        overlaps = overlaps.or(Some(range.gfns));
                    }
                    end = range.gfns.end;
                    // At most 2¹⁶ ranges of less than 2³² pages: no overflow.
                    bytes += range.gfns.len() * PAGE_SIZE;
                    ranges.push(range);
                }
                other => return Err(WireError::Unexpected(other)),
            }
        }
        match from.next(&mut [])? {
            Frame::EndOfRound(receipt) if receipt.round == 0 => {}
            other => return Err(WireError::Unexpected(other)),
        }
        // From here on the sender waits for an answer, so it hears a refusal.
        match (overlaps, &self.ranges) {
            _ if self.over => Err(WireError::Over),
            (Some(gfns), _) => Err(WireError::Overlap(gfns)),
            (None, _) if bytes > self.most_bytes => {
                Err(WireError::TooLarge { sender: bytes, receiver: self.most_bytes })
            }
            (None, Some(here)) if *here != ranges => Err(WireError::OtherMachine),
            (None, _) => Ok(Sender { identity, confirmed, ranges }),
        }
    }

    /// Gives the memory to this sender's migration: all of it is zero.
    fn hold(&mut self, sender: Sender) -> Result<(), Interrupted<T::Error>> {
        // Until all of it is zero, it belongs to no migration, even if the target fails or panics.
        self.holds = None;
        match &self.ranges {
            None => {
                // It is not called again after a panic.
                self.over = true;
                self.target.create(&sender.ranges).map_err(Interrupted::guest)?;
                self.over = false;
                self.ranges = Some(sender.ranges);
            }
            Some(ranges) if self.written => {
                for range in ranges {
                    let mut at = range.gfns.start;
                    while at < range.gfns.end {
                        let gfns = Span::new(at, range.gfns.end.min(at + ZEROED));
                        self.target.zero(gfns).map_err(Interrupted::guest)?;
                        at = gfns.end;
                    }
                }
                self.written = false;
            }
            Some(_) => {}
        }
        self.holds = Some(Holds { identity: sender.identity, has: Receipt::default(), last: NO_TICKET });
        Ok(())
    }

    /// Refuses frames that are not inside one range.
    fn look_up(&self, gfns: Span<Gfn>) -> Result<(), WireError> {
        let ranges = self.ranges.as_deref().unwrap_or(&[]);
        let after = ranges.partition_point(|range| range.gfns.start <= gfns.start);
        match ranges[..after].last() {
            Some(range) if range.gfns.covers(&gfns) => Ok(()),
            _ => Err(WireError::Place(gfns)),
        }
    }
}

/// Reads the rest of a round, up to a limit. A socket that is closed with unread bytes loses those that it has sent, and
/// the sender reads the reason where the round ends.
fn drain<S: Read>(from: &mut Reading<BufReader<S>>) {
    let mut contents = vec![0; (MOST_PAGES * PAGE_SIZE) as usize];
    for _ in 0..DRAINED {
        if let Err(_) | Ok(Frame::EndOfRound(_) | Frame::End(_)) = from.next(&mut contents) {
            return;
        }
    }
}

/// Writes frames to the sender.
fn answer<S: Read + Write>(to: &mut Reading<BufReader<S>>, frames: &[Frame]) -> io::Result<()> {
    let stream = to.stream().get_mut();
    frames.iter().try_for_each(|frame| stream.write_all(&frame.encode()))?;
    stream.flush()
}

#[cfg(test)]
#[path = "receiver_tests.rs"]
mod tests;
