//! Pages on their way to devices: a batch, begun at once and waited for later.
//!
//! ```text
//! plan     blocks of the devices that are asked, by priority          books
//! begin    each device's pages, neighbours together                   no lock
//! wait     stored, or another round for those that were refused       no lock, then books
//! ```
//! A page that one device refuses goes to the next. A device that refuses one is **in trouble**: it gets one page at a time until it
//! takes one ([`PROBES`](super::blocks::PROBES)). So a device that is full, or fails, and works again later is found out by trying,
//! and costs others little meanwhile.

use super::Swap;
use super::books::Place;
use super::device::{Bytes, Failed};
use super::error::SwapError;
use super::request::{Requests, Way};
use std::ptr::NonNull;

/// A page on its way.
#[derive(Debug)]
struct Page {
    bytes: NonNull<Bytes>,
    /// Why it was not stored so far; or where it is.
    place: Result<Place, SwapError>,
    /// It has been said where it ends.
    settled: bool,
}

/// What was begun with one device.
#[derive(Debug)]
struct Part {
    device: u8,
    /// Which page goes to which block.
    pages: Vec<(usize, u32)>,
    requests: Requests,
}

/// See the module's header. Dropping it waits.
#[derive(Debug)]
pub(super) struct Writing<'a> {
    swap: &'a Swap,
    // Before the pages: it is dropped first, and waits.
    parts: Vec<Part>,
    pages: Vec<Page>,
    /// Devices that are not asked any more, by bits.
    closed: u64,
    /// It has been said that there was no room.
    was_full: bool,
}

impl<'a> Writing<'a> {
    /// Begins to write these pages.
    ///
    /// # Safety
    /// Until this is dropped they stay, and no thread writes to them.
    pub(super) unsafe fn begin(swap: &'a Swap, pages: impl Iterator<Item = NonNull<Bytes>>) -> Self {
        let page = |bytes| Page { bytes, place: Err(SwapError::Full), settled: false };
        let mut writing =
            Self { swap, parts: Vec::new(), pages: pages.map(page).collect(), closed: 0, was_full: false };
        writing.go_on();
        writing
    }

    /// Where each page is, or why it is nowhere, in the order in which they were given. May sleep.
    pub(super) fn wait(mut self) -> Vec<Result<Place, SwapError>> {
        while !self.parts.is_empty() {
            self.settle();
            self.go_on();
        }
        if !self.was_full && self.pages.iter().any(|page| page.place == Err(SwapError::Full)) {
            self.swap.books.lock().failed_to_store(SwapError::Full);
        }
        std::mem::take(&mut self.pages).into_iter().map(|page| page.place).collect()
    }

    /// Begins a round with those that are nowhere yet.
    fn go_on(&mut self) {
        let mut left: Vec<usize> = (0..self.pages.len()).filter(|&at| !self.pages[at].settled).collect();
        if left.is_empty() {
            return;
        }
        let plan = self.swap.books.lock().plan(left.len(), self.closed);
        for (device, blocks) in plan {
            let pages: Vec<(usize, u32)> = left.drain(..blocks.len()).zip(blocks).collect();
            let asked: Vec<_> = pages.iter().map(|&(at, block)| (block, self.pages[at].bytes)).collect();
            // SAFETY: the word given to `begin`; `parts` is waited for before the pages go.
            let requests = unsafe { self.swap.ports[usize::from(device)].begin(Way::Write, &asked) };
            self.parts.push(Part { device, pages, requests });
        }
    }

    /// Waits for a round.
    fn settle(&mut self) {
        for Part { device, pages, requests } in std::mem::take(&mut self.parts) {
            let held = if seeded!(BooksHeld) { Some(self.swap.books.lock()) } else { None };
            let outcome = requests.wait();
            drop(held);
            let mut books = self.swap.books.lock();
            for ((at, block), outcome) in pages.into_iter().zip(outcome) {
                let page = &mut self.pages[at];
                let outcome = if seeded!(FailureBelieved) { Ok(()) } else { outcome };
                books.tried(device, block, outcome.is_ok());
                match outcome {
                    Ok(()) => (page.place, page.settled) = (Ok(Place::Block(device, block)), true),
                    Err(failed) => {
                        page.place = Err(failed.into());
                        self.closed |= 1 << device;
                        // A page that finds a full device is one refusal; those behind it were not asked for.
                        if failed != Failed::NoSpace || !std::mem::replace(&mut self.was_full, true) {
                            books.failed_to_store(failed.into());
                        }
                    }
                }
            }
        }
    }
}
