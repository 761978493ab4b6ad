//! Tracks which pages a guest writes, and which of them a snapshot still has to read while the guest runs.
//!
//! Tracking costs nothing before the first harvest. The harvest write-protects all present pages, and later fills
//! protect their pages in the same request. The first write to each page is a fault, which sets the page's bit.
//!
//! A harvest takes the bits and protects all pages in one step, while no thread fills pages. Then the guest may run. A
//! background thread reads the content of the harvest; a page that is about to be written, filled or removed is read
//! before that.

use super::Inner;
use super::bits::Bits;
use super::content::{Content, Piece};
use super::fault::{Answer, Fault};
use super::memory_reader::MemoryReader;
use crate::cache::Source;
use crate::store::Template;
use crate::uffd::abi::Message;
use crate::uffd::{PAGE, Refusal};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// State of a guest's tracking.
#[derive(Default)]
pub(super) struct Tracking {
    is_on: AtomicBool,
    /// Pages written, filled without protection, or removed since the last harvest.
    pub dirty: Bits,
    is_capturing: AtomicBool,
    pub capture: Mutex<Option<Capture>>,
    /// A harvest exists.
    pub is_taken: AtomicBool,
    /// Template of the last snapshot.
    pub parent: Mutex<Option<Template>>,
}

/// Content that a harvest has to read.
pub(super) struct Capture {
    reader: MemoryReader,
    /// Pages whose content is still to read.
    left: Bits,
    /// Content that was read early.
    early: Kept,
    /// Pages that are zeros if missing. Other missing pages are as in the previous snapshot.
    pub zeros: Bits,
    /// Error after which the content of the instant is lost.
    failed: Option<io::Error>,
}

/// Number of pages in a block.
const BLOCK: usize = 64;

/// Copies of pages in blocks, which go back to the kernel when they are freed. The allocator would keep single pages,
/// as many as all guests had at a time.
#[derive(Default)]
struct Kept {
    blocks: Vec<Box<[u8]>>,
    /// Places in the blocks: free ones, and that of each copied page.
    free: Vec<usize>,
    places: HashMap<usize, usize>,
}

impl Kept {
    fn put(&mut self, page: usize, content: &[u8; PAGE]) {
        if self.free.is_empty() {
            let first = self.blocks.len() * BLOCK;
            self.free.extend((first..first + BLOCK).rev());
            self.blocks.push(vec![0; BLOCK * PAGE].into());
        }
        let place = self.free.pop().expect("a block has places");
        self.blocks[place / BLOCK][place % BLOCK * PAGE..][..PAGE].copy_from_slice(content);
        self.places.insert(page, place);
    }

    /// Copies the content of a page to `into` and frees its place.
    fn take(&mut self, page: usize, into: &mut [u8]) {
        if let Some(place) = self.places.remove(&page) {
            into.copy_from_slice(&self.blocks[place / BLOCK][place % BLOCK * PAGE..][..PAGE]);
            self.free.push(place);
        }
    }
}

impl Tracking {
    pub fn new(pages: usize) -> Self {
        Self { dirty: Bits::new(pages), ..Self::default() }
    }

    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Begins a capture of these pages. The caller has protected all pages, and no thread fills pages meanwhile.
    pub fn begin(&self, reader: MemoryReader, pages: &Bits, zeros: Bits) {
        self.is_on.store(true, Ordering::Relaxed);
        let left = pages.clone();
        *self.capture.lock() = Some(Capture { reader, left, early: Kept::default(), zeros, failed: None });
        self.is_capturing.store(true, Ordering::Relaxed);
    }

    /// Ends the capture.
    pub fn end(&self) {
        self.is_capturing.store(false, Ordering::Relaxed);
        *self.capture.lock() = None;
        self.is_taken.store(false, Ordering::Relaxed);
    }
}

impl Capture {
    /// Reads those of these pages early that are still to read.
    fn read_early(&mut self, inner: &Inner, pages: Range<usize>) {
        for page in pages {
            if !self.left.clear(page) {
                continue;
            }
            let mut content = [0; PAGE];
            let mut is_there = true;
            let missing = |page, _: &mut [u8]| is_there = self.zeros.has(page);
            match self.reader.read(&inner.layout, &inner.journal, page..page + 1, &mut content, missing) {
                // Otherwise the page is as in the previous snapshot.
                Ok(()) if is_there => self.early.put(page, &content),
                Ok(()) => {}
                Err(error) => self.fail(error),
            }
        }
    }

    fn fail(&mut self, error: io::Error) {
        self.failed.get_or_insert(error);
    }

    /// Reads the content of these pages of the harvest into `into`, which begins with the page `start` and has the
    /// content of the previous snapshot.
    pub fn read(
        &mut self,
        inner: &Inner,
        pages: Range<usize>,
        start: usize,
        into: &mut [u8],
    ) -> io::Result<()> {
        for page in pages.clone() {
            self.early.take(page, &mut into[(page - start) * PAGE..][..PAGE]);
        }
        let runs: Vec<_> = self.left.runs(pages).collect();
        for run in runs {
            let bytes = (run.start - start) * PAGE..(run.end - start) * PAGE;
            let missing = |page, into: &mut [u8]| {
                if self.zeros.has(page) {
                    into.fill(0);
                }
            };
            self.reader.read(&inner.layout, &inner.journal, run.clone(), &mut into[bytes], missing)?;
            run.for_each(|page| _ = self.left.clear(page));
        }
        self.failed.take().map_or(Ok(()), Err)
    }
}

impl Inner {
    /// Returns whether pages that are filled now must be protected. Notes unprotected ones as dirty, because the guest
    /// may write to them at once.
    pub(super) fn before_fill(&self, piece: &Piece) -> bool {
        if !self.tracking.is_on() {
            return false;
        }
        // No request fills with zeros and protects.
        let is_protected = !piece.write && !matches!(piece.content, Content::Zeros);
        if !is_protected {
            piece.pages.clone().for_each(|page| self.tracking.dirty.set(page));
        }
        is_protected
    }

    /// Returns whether a page that is mapped again must be protected.
    pub(super) fn before_resume(&self, page: usize) -> bool {
        let is_on = self.tracking.is_on();
        if is_on && !self.can_resume_protected {
            self.before_write(page);
        }
        is_on && self.can_resume_protected
    }

    /// Notes a page that becomes zeros as dirty: the guest may write to it at once.
    pub(super) fn before_zeros(&self, page: usize) {
        if self.tracking.is_on() {
            self.before_write(page);
        }
    }

    /// Returns whether a page that comes back from the swap file must be protected.
    pub(super) fn before_return(&self, page: usize, is_write: bool) -> bool {
        let is_on = self.tracking.is_on();
        if is_on && is_write {
            self.before_write(page);
        }
        is_on && !is_write
    }

    /// Returns whether a harvest still reads pages.
    pub(super) fn is_capturing(&self) -> bool {
        self.tracking.is_capturing.load(Ordering::Relaxed)
    }

    fn before_write(&self, page: usize) {
        let pages = self.unit_of(page);
        pages.clone().for_each(|page| self.tracking.dirty.set(page));
        self.capture_early(pages);
    }

    /// Lets the guest write to a protected page.
    pub(super) fn permit_write(&self, fault: &Fault, page: usize) -> Answer {
        let _order = self.order.read();
        self.young.set(page);
        self.before_write(page);
        let refusal = match self.uffd.unprotect(fault.address, self.page_bytes()) {
            Ok(()) => return self.done(fault, Source::Written),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => Refusal::Again,
                Some(libc::ESRCH) => Refusal::Gone,
                Some(libc::ENOENT) => Refusal::Unmapped,
                _ => Refusal::Other(error),
            },
        };
        self.refused(&refusal, fault)
    }

    fn capture_early(&self, pages: Range<usize>) {
        if self.tracking.is_capturing.load(Ordering::Relaxed)
            && let Some(capture) = &mut *self.tracking.capture.lock()
        {
            capture.read_early(self, pages);
        }
    }

    /// Called before events are read, under the exclusive lock. Returns how many may be read at a time. While a harvest
    /// reads, its remaining pages are read before a removal's event, because to read that event permits the removal. If
    /// no removal is under way, the ready event is a fault. It stays one, because no thread fills pages under this
    /// lock, and the kernel delivers faults before removals. So a single event that is read now is no removal that came
    /// a moment later.
    pub(super) fn before_events(&self, most: usize) -> usize {
        if !self.is_capturing() {
            return most;
        }
        let now = Timespec::default();
        let is_ready = poll(&mut [PollFd::from_borrowed_fd(self.uffd.as_fd(), PollFlags::IN)], Some(&now));
        if self.uffd.is_changing() {
            self.capture_early(0..self.layout.image_pages());
        }
        usize::from(is_ready != Ok(0))
    }

    /// Notes removed pages, which are zero in the next snapshot. If a harvest still needed the content of one, it
    /// fails.
    pub(super) fn note_removal(&self, message: &Message) {
        let Some(range) = message.removed().filter(|_| self.tracking.is_on()) else { return };
        for pages in self.layout.pages(range.start, range.end) {
            pages.clone().for_each(|page| self.tracking.dirty.set(page));
            if let Some(capture) = &mut *self.tracking.capture.lock()
                && capture.left.runs(pages.clone()).next().is_some()
            {
                let what = "the guest gave pages back in the moment in which they were to be read: try again";
                capture.fail(io::Error::new(io::ErrorKind::ResourceBusy, what));
            }
        }
    }
}
