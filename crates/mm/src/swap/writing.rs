//! Writing a batch of pages to devices: started at once, awaited later.
//!
//! ```text
//! plan     choose blocks of devices, by priority                      table
//! begin    start each device's pages, neighbours together             no lock
//! wait     stored, or another round for refused pages                 no lock, then table
//! ```
//! A page that one device refuses goes to the next. A device that refuses a page is **failing**: it gets one
//! page at a time until it takes one ([`PROBES`](super::blocks::PROBES)). So trying finds out when a device
//! works again, at little cost to others.

use super::Swap;
use super::copy_table::Place;
use super::device::{Bytes, Failed};
use super::error::SwapError;
use super::request::{Direction, Requests};
use std::ptr::NonNull;

/// A page being written.
#[derive(Debug)]
struct Page {
    bytes: NonNull<Bytes>,
    /// Where it was stored, or why not yet.
    place: Result<Place, SwapError>,
    /// The page was stored.
    stored: bool,
}

/// The pages of a round that go to one device.
#[derive(Debug)]
struct Part {
    device: u8,
    /// Index of each page, and its block.
    pages: Vec<(usize, u32)>,
    requests: Requests,
}

/// A batch being written. Dropping it waits.
#[derive(Debug)]
pub(super) struct Writing<'a> {
    swap: &'a Swap,
    // Declared before the pages, so that it is dropped first, and waits.
    parts: Vec<Part>,
    pages: Vec<Page>,
    /// Bit mask of devices that refused a page of this batch.
    closed: u64,
    /// A lack of room was counted.
    was_full: bool,
}

impl<'a> Writing<'a> {
    /// Starts to write these pages.
    ///
    /// # Safety
    /// Until this is dropped the pages stay allocated, and no thread writes to them.
    pub(super) unsafe fn begin(swap: &'a Swap, pages: impl Iterator<Item = NonNull<Bytes>>) -> Self {
        let page = |bytes| Page { bytes, place: Err(SwapError::Full), stored: false };
        let mut writing =
            Self { swap, parts: Vec::new(), pages: pages.map(page).collect(), closed: 0, was_full: false };
        writing.start_round();
        writing
    }

    /// Waits, and returns the place or error of each page, in the order given. May sleep.
    pub(super) fn wait(mut self) -> Vec<Result<Place, SwapError>> {
        while !self.parts.is_empty() {
            self.finish_round();
            self.start_round();
        }
        if !self.was_full && self.pages.iter().any(|page| page.place == Err(SwapError::Full)) {
            self.swap.table.lock().failed_to_store(SwapError::Full);
        }
        std::mem::take(&mut self.pages).into_iter().map(|page| page.place).collect()
    }

    /// Starts a round with the pages that are not stored yet.
    fn start_round(&mut self) {
        let mut left: Vec<usize> = (0..self.pages.len()).filter(|&at| !self.pages[at].stored).collect();
        if left.is_empty() {
            return;
        }
        let plan = self.swap.table.lock().plan(left.len(), self.closed);
        for (device, blocks) in plan {
            let pages: Vec<(usize, u32)> = left.drain(..blocks.len()).zip(blocks).collect();
            let asked: Vec<_> = pages.iter().map(|&(at, block)| (block, self.pages[at].bytes)).collect();
            // SAFETY: the condition of `begin`; `parts` is awaited before the pages are dropped.
            let requests = unsafe { self.swap.ports[usize::from(device)].begin(Direction::Write, &asked) };
            self.parts.push(Part { device, pages, requests });
        }
    }

    /// Waits for the current round.
    fn finish_round(&mut self) {
        for Part { device, pages, requests } in std::mem::take(&mut self.parts) {
            let outcome = requests.wait();
            let mut table = self.swap.table.lock();
            for ((at, block), outcome) in pages.into_iter().zip(outcome) {
                let page = &mut self.pages[at];
                table.tried(device, block, outcome.is_ok());
                match outcome {
                    Ok(()) => (page.place, page.stored) = (Ok(Place::Block(device, block)), true),
                    Err(failed) => {
                        page.place = Err(failed.into());
                        self.closed |= 1 << device;
                        // A full device counts as one refusal: pages behind the first were not tried.
                        if failed != Failed::NoSpace || !std::mem::replace(&mut self.was_full, true) {
                            table.failed_to_store(failed.into());
                        }
                    }
                }
            }
        }
    }
}
