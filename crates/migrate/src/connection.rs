//! A round over one connection to the receiver: reads pages, separates zero pages, and sends them.

use crate::error::{Interrupted, MigrateError};
use crate::frame::{Frame, MOST_PAGES, MemoryRange, Receipt};
use crate::identity::Known;
use crate::outcome::{Round, Sent};
use crate::source_target::{Progress, Source};
use crate::wire::{Reading, Writing};
use slat::{DirtyPage, DirtyWord, Gfn, PAGE_SIZE, SlotId, Span};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The receiver's place of each slot.
pub(crate) struct Announced(HashMap<SlotId, Span<Gfn>>);

impl Announced {
    pub(crate) fn new(ranges: &[MemoryRange]) -> Self {
        Self(ranges.iter().map(|range| (range.slot, range.gfns)).collect())
    }

    /// Returns the first frame that these pages have at the receiver. Their own is from the time of the harvest: slots
    /// move.
    fn place(&self, first: DirtyPage, pages: u64) -> Option<Gfn> {
        let gfns = self.0.get(&first.slot)?;
        let fits = first.page.checked_add(pages).is_some_and(|end| end <= gfns.len());
        fits.then(|| gfns.start + first.page)
    }
}

impl<S: Read + Write> Writing<S> {
    /// Sends these pages as the next round of `known`, at most so many bytes per second on average, and waits for the
    /// confirmation. Counts in `round.sent` even if it fails.
    pub(crate) fn round<G: Source>(
        &mut self,
        source: &mut G,
        known: &mut Known,
        (announced, words): (&Announced, &[DirtyWord]),
        bandwidth: Option<u64>,
        round: &mut Round,
    ) -> Result<Receipt, Interrupted<G::Error>> {
        let (began, before) = (Instant::now(), self.bytes);
        let mut contents = vec![0; (MOST_PAGES * PAGE_SIZE) as usize];
        let mut progress = Progress { round: round.number, last: round.last, pages: round.told, sent: 0 };
        tell(source, progress)?;
        for word in words {
            let result = self.word(source, announced, word, (&mut contents, &mut round.sent));
            round.sent.bytes = self.bytes - before;
            result?;
            progress.sent += u64::from(word.bits.count_ones());
            tell(source, progress)?;
            if let Some(bytes_per_s) = bandwidth {
                let due = Duration::from_secs_f64(round.sent.bytes as f64 / bytes_per_s as f64);
                sleep(due.saturating_sub(began.elapsed()));
            }
        }
        let receipt = self.receipt(known.confirmed.round + 1, round.last);
        // Noted before it is sent: it may arrive even if this side sees an error.
        known.sends(receipt);
        self.send(if round.last { Frame::End(receipt) } else { Frame::EndOfRound(receipt) })?;
        round.sent.bytes = self.bytes - before;
        Reading::new(self.stream()).receipt(receipt)?;
        Ok(receipt)
    }

    /// Sends the pages of a word, in runs.
    fn word<G: Source>(
        &mut self,
        source: &mut G,
        announced: &Announced,
        word: &DirtyWord,
        (contents, sent): (&mut [u8], &mut Sent),
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
            let place = announced.place(from, pages).ok_or(MigrateError::NotAnnounced(from));
            let mut at = place.map_err(Interrupted::Over)?;
            source.read(from, contents).map_err(Interrupted::guest)?;
            let mut rest = &*contents;
            while !rest.is_empty() {
                let (run, zero) = alike(rest);
                rest = &rest[run.len()..];
                let gfns = Span::sized(at, run.len() as u64 / PAGE_SIZE);
                at = gfns.end;
                if zero {
                    sent.zeroes += gfns.len();
                    self.zeroes(gfns)?;
                } else {
                    self.pages(gfns, run)?;
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
