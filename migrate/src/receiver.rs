//! The receiver: creates memory as the stream says, fills it as pages arrive, and hands it over when it is
//! complete.
//!
//! It survives broken connections. A broken connection leaves pages of a round that does not count; the sender
//! gives that round's bits back, connects again, and sends those pages again. Pages of earlier rounds are kept
//! and not sent again. Connections are served one after another, each to its end, so a page of an old
//! connection never overwrites one of the next.
//!
//! The receiver does not trust its input: it checks each frame before it acts, and [`WireError`] says what was
//! wrong. Pages are written after their own checksum was verified, and count after that of their round was
//! verified. Without the first check, a damaged frame could write a page to a wrong place, and the repeated
//! round would not correct it.

use crate::error::{Interrupted, MigrateError, WireError};
use crate::guest::{MemoryRange, Target};
use crate::wire::{Frame, MOST_PAGES, Reading};
use slat::{Gfn, PAGE_SIZE, Span};
use std::collections::HashSet;
use std::io::{self, BufReader, Read, Write};

/// Most ranges of guest memory.
const MOST_RANGES: u64 = 1 << 16;

/// The receiving end of a migration. [`PreCopy`](crate::PreCopy) is the sending end.
///
/// The stream is neither encrypted nor authenticated. Its contents are checked, so a stranger can only make the
/// receiver refuse a migration or receive the stranger's guest. Use TLS or a tunnel if strangers can connect.
#[derive(Debug)]
pub struct Receiver<T> {
    target: T,
    most_bytes: u64,
    /// In order of frames; `None` until they are known.
    ranges: Option<Vec<MemoryRange>>,
}

impl<T: Target> Receiver<T> {
    /// Receives a guest of at most `most_bytes` of memory into `target`.
    pub fn new(target: T, most_bytes: u64) -> Self {
        Self { target, most_bytes, ranges: None }
    }

    /// Serves the connections that `accept` opens, one after another, until the guest may run here. Set
    /// timeouts on the streams: `receive` waits for a silent sender as long as they allow.
    ///
    /// A connection that breaks or is refused leaves earlier rounds in place. If the sender then gives up, the
    /// error says what was refused last, or why `accept` failed.
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
                Err(MigrateError::Refused(WireError::Closed)) => {}
                Err(MigrateError::Refused(error)) => refused = Some(error),
                result => return result,
            }
        }
    }

    /// Serves one connection. After `Ok` the guest may run here. After [`MigrateError::Refused`], serve another
    /// connection if the sender opens one. After any other error the migration is over.
    pub fn serve(&mut self, stream: impl Read + Write) -> Result<(), MigrateError<T::Error>> {
        self.serve_frames(stream).map_err(|why| match why {
            Interrupted::Wire(error) => MigrateError::Refused(error),
            Interrupted::Over(error) => error,
        })
    }

    /// Returns the memory.
    pub fn target(&self) -> &T {
        &self.target
    }

    /// Returns the memory, to run the guest.
    pub fn into_target(self) -> T {
        self.target
    }

    fn serve_frames(&mut self, stream: impl Read + Write) -> Result<(), Interrupted<T::Error>> {
        let mut from = Reading::new(BufReader::with_capacity(64 << 10, stream));
        match from.next(&mut [])? {
            Frame::Hello { ranges } if ranges <= MOST_RANGES => self.memory(&mut from, ranges)?,
            Frame::Cancel => return Err(Interrupted::Over(MigrateError::Cancelled)),
            other => return Err(WireError::Unexpected(other).into()),
        }
        let mut contents = vec![0; (MOST_PAGES * PAGE_SIZE) as usize];
        let mut complete = false;
        loop {
            match from.next(&mut contents)? {
                Frame::Pages(gfns, _) if !complete => {
                    self.look_up(gfns)?;
                    let contents = &contents[..(gfns.len() * PAGE_SIZE) as usize];
                    self.target.write(gfns, contents).map_err(Interrupted::guest)?;
                }
                Frame::Zeroes(gfns, _) if !complete => {
                    self.look_up(gfns)?;
                    self.target.zero(gfns).map_err(Interrupted::guest)?;
                }
                frame @ (Frame::EndOfRound(receipt) | Frame::End(receipt)) if !complete => {
                    complete = matches!(frame, Frame::End(_));
                    let stream = from.stream().get_mut();
                    stream.write_all(&Frame::Received(receipt).encode())?;
                    stream.flush()?;
                }
                Frame::Go if complete => return Ok(()),
                Frame::Cancel => return Err(Interrupted::Over(MigrateError::Cancelled)),
                other => return Err(WireError::Unexpected(other).into()),
            }
        }
    }

    /// Reads the description of the memory, and creates the memory or checks that it is the existing one.
    fn memory(&mut self, from: &mut Reading<impl Read>, count: u64) -> Result<(), Interrupted<T::Error>> {
        let (mut ranges, mut bytes, mut end) = (Vec::new(), 0, Gfn(0));
        let mut slots = HashSet::new();
        for _ in 0..count {
            match from.next(&mut [])? {
                Frame::Range(range) => {
                    if range.gfns.start < end || !slots.insert(range.slot) {
                        return Err(WireError::Overlap(range.gfns).into());
                    }
                    end = range.gfns.end;
                    // At most 2¹⁶ ranges of less than 2³² pages: no overflow.
                    bytes += range.gfns.len() * PAGE_SIZE;
                    ranges.push(range);
                }
                other => return Err(WireError::Unexpected(other).into()),
            }
        }
        match from.next(&mut [])? {
            Frame::EndOfRound(receipt) if receipt.round == 0 => {}
            other => return Err(WireError::Unexpected(other).into()),
        }
        match &self.ranges {
            Some(here) if *here == ranges => Ok(()),
            Some(_) => Err(WireError::OtherMachine.into()),
            None if bytes > self.most_bytes => {
                Err(WireError::TooLarge { sender: bytes, receiver: self.most_bytes }.into())
            }
            None => {
                self.target.create(&ranges).map_err(Interrupted::guest)?;
                self.ranges = Some(ranges);
                Ok(())
            }
        }
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

#[cfg(test)]
#[path = "receiver_tests.rs"]
mod tests;
