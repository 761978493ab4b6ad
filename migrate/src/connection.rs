//! One connection to the receiver, and rounds over it: reads pages, separates zero pages, and sends them.

use crate::error::{Interrupted, MigrateError, WireError};
use crate::guest::{MemoryRange, Progress, Source};
use crate::wire::{Frame, MOST_PAGES, Reading, Writing};
use slat::{DirtyPage, DirtyWord, PAGE_SIZE, Span};
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A connection to the receiver.
pub(crate) struct Connection<S: Read + Write>(pub(crate) Writing<S>);

/// Parameters of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    /// Number of the round, from 1.
    pub(crate) round: u64,
    /// Whether the guest is halted.
    pub(crate) last: bool,
    /// Limit in bytes per second.
    pub(crate) bandwidth: Option<u64>,
}

/// What a round has sent, whether or not it was received.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    /// Zero pages.
    pub zeroes: u64,
    /// Bytes written to the stream.
    pub bytes: u64,
}

impl<S: Read + Write> Connection<S> {
    /// Sends `Hello` over a new stream.
    pub(crate) fn new(stream: S, ranges: &[MemoryRange]) -> Result<Self, WireError> {
        let mut to = Writing::new(stream);
        to.greet(ranges)?;
        Ok(Self(to))
    }

    /// Sends a round and waits for its confirmation. Updates `sent` even if it fails.
    pub(crate) fn send<G: Source>(
        &mut self,
        source: &mut G,
        words: &[DirtyWord],
        order: Order,
        sent: &mut Sent,
    ) -> Result<(), Interrupted<G::Error>> {
        let mut pace = Pace::new(order.bandwidth);
        let mut contents = vec![0; (MOST_PAGES * PAGE_SIZE) as usize];
        let before = self.0.bytes;
        let mut progress = Progress { round: order.round, last: order.last, pages: pages(words), sent: 0 };
        tell(source, progress)?;
        for word in words {
            let start = self.0.bytes;
            let result = self.word(source, word, &mut contents, sent);
            sent.bytes = self.0.bytes - before;
            result?;
            progress.sent += u64::from(word.bits.count_ones());
            tell(source, progress)?;
            pace.sent(self.0.bytes - start);
        }
        let receipt = self.0.end_round(order.round, order.last)?;
        sent.bytes = self.0.bytes - before;
        Reading::new(self.0.stream()).receipt(receipt)?;
        Ok(())
    }

    /// Hands the guest over to the receiver.
    pub(crate) fn go(&mut self) -> Result<(), WireError> {
        self.0.send(Frame::Go)?;
        self.0.flush()
    }

    /// Tells the receiver that the migration is cancelled.
    pub(crate) fn cancel(&mut self) -> Result<(), WireError> {
        self.0.send(Frame::Cancel)?;
        self.0.flush()
    }

    /// Sends the pages of a word, in runs.
    fn word<G: Source>(
        &mut self,
        source: &mut G,
        word: &DirtyWord,
        contents: &mut [u8],
        sent: &mut Sent,
    ) -> Result<(), Interrupted<G::Error>> {
        let mut bits = word.bits;
        while bits != 0 {
            let first = u64::from(bits.trailing_zeros());
            let pages = u64::from((!(bits >> first)).trailing_zeros()).min(MOST_PAGES - first);
            // Clears the run; a word of ones is a single run.
            bits &= u64::MAX.checked_shl((first + pages) as u32).unwrap_or(0);
            let contents = &mut contents[..(pages * PAGE_SIZE) as usize];
            let from = DirtyPage {
                page: word.first.page + first,
                gfn: word.first.gfn + first,
                hva: word.first.hva + first * PAGE_SIZE,
                ..word.first
            };
            source.read(from, contents).map_err(Interrupted::guest)?;
            let mut at = from.gfn;
            let mut rest = &*contents;
            while !rest.is_empty() {
                let (run, zero) = alike(rest);
                rest = &rest[run.len()..];
                let gfns = Span::sized(at, run.len() as u64 / PAGE_SIZE);
                at = gfns.end;
                if zero {
                    sent.zeroes += gfns.len();
                    self.0.zeroes(gfns)?;
                } else {
                    self.0.pages(gfns, run)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the number of pages in these words.
pub(crate) fn pages(words: &[DirtyWord]) -> u64 {
    words.iter().map(|word| u64::from(word.bits.count_ones())).sum()
}

fn tell<G: Source>(source: &mut G, progress: Progress) -> Result<(), Interrupted<G::Error>> {
    match source.progress(progress) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Interrupted::Over(MigrateError::Cancelled)),
    }
}

/// Limits the speed of a stream, on average since its creation.
#[derive(Debug)]
struct Pace {
    bytes_per_s: Option<u64>,
    began: Instant,
    sent: u64,
}

impl Pace {
    fn new(bytes_per_s: Option<u64>) -> Self {
        Self { bytes_per_s, began: Instant::now(), sent: 0 }
    }

    /// Counts sent bytes, and sleeps while they are ahead of the limit.
    fn sent(&mut self, bytes: u64) {
        self.sent += bytes;
        if let Some(limit) = self.bytes_per_s {
            let due = Duration::from_secs_f64(self.sent as f64 / limit as f64);
            sleep(due.saturating_sub(self.began.elapsed()));
        }
    }
}

/// Returns the longest prefix of pages that are all zero or all not, and which.
fn alike(pages: &[u8]) -> (&[u8], bool) {
    let mut zero = pages.chunks_exact(PAGE_SIZE as usize).map(is_zero);
    let first = zero.next().unwrap_or(false);
    let more = zero.take_while(|&zero| zero == first).count();
    (&pages[..(1 + more) * PAGE_SIZE as usize], first)
}

/// Whether a page is zero.
fn is_zero(page: &[u8]) -> bool {
    page.chunks_exact(64).all(|line| line.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_pages_are_separated_from_others() {
        let mut pages = vec![0; 5 * PAGE_SIZE as usize];
        // The last byte of page 2, and all of page 3.
        pages[3 * PAGE_SIZE as usize - 1..4 * PAGE_SIZE as usize].fill(7);
        let mut rest = pages.as_slice();
        let mut runs = Vec::new();
        while !rest.is_empty() {
            let (run, zero) = alike(rest);
            runs.push((run.len() as u64 / PAGE_SIZE, zero));
            rest = &rest[run.len()..];
        }
        assert_eq!(runs, [(2, true), (2, false), (1, true)]);
    }
}
