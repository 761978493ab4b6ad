//! The content that a harvest has to read: the pages that are left, and those that were read early.

use super::bits::Bits;
use super::memory_reader::MemoryReader;
use crate::journal::Journal;
use crate::layout::Layout;
use crate::store::Template;
use crate::uffd::PAGE;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// State of a guest's tracking.
#[derive(Default)]
pub(super) struct Tracking {
    is_on: AtomicBool,
    /// Pages written, filled without protection, or removed since the last harvest. Most guests have none.
    dirty: OnceLock<Bits>,
    pages: usize,
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
        Self { pages, ..Self::default() }
    }

    /// Returns the pages written, filled without protection, or removed since the last harvest.
    pub fn dirty(&self) -> &Bits {
        self.dirty.get_or_init(|| Bits::new(self.pages))
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

    /// Returns whether a harvest still reads pages.
    pub fn is_capturing(&self) -> bool {
        self.is_capturing.load(Ordering::Relaxed)
    }

    /// Ends the capture.
    pub fn end(&self) {
        self.is_capturing.store(false, Ordering::Relaxed);
        *self.capture.lock() = None;
        self.is_taken.store(false, Ordering::Relaxed);
    }
}

impl Capture {
    /// Returns whether some of these pages are still to read.
    pub fn needs(&self, pages: Range<usize>) -> bool {
        self.left.runs(pages).next().is_some()
    }

    /// Reads those of these pages early that are still to read.
    pub fn read_early(&mut self, layout: &Layout, journal: &Journal, pages: Range<usize>) {
        for page in pages {
            if !self.left.clear(page) {
                continue;
            }
            let mut content = [0; PAGE];
            let mut is_there = true;
            let missing = |page, _: &mut [u8]| is_there = self.zeros.has(page);
            match self.reader.read(layout, journal, page..page + 1, &mut content, missing) {
                // Otherwise the page is as in the previous snapshot.
                Ok(()) if is_there => self.early.put(page, &content),
                Ok(()) => {}
                Err(error) => self.fail(error),
            }
        }
    }

    pub fn fail(&mut self, error: io::Error) {
        self.failed.get_or_insert(error);
    }

    /// Reads the content of these pages of the harvest into `into`, which begins with the page `start` and has the
    /// content of the previous snapshot.
    pub fn read(
        &mut self,
        layout: &Layout,
        journal: &Journal,
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
            self.reader.read(layout, journal, run.clone(), &mut into[bytes], missing)?;
            run.for_each(|page| _ = self.left.clear(page));
        }
        self.failed.take().map_or(Ok(()), Err)
    }
}
