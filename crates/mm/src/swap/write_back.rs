//! Write-back: moves the oldest copies from the pool to a device, so that memory holds the latest.
//!
//! A copy is decompressed and checked first. A corrupt copy stays, so that the access that needs it gets the
//! error. During the write the copy is in both places. Then it moves, unless a thread is reading the old place,
//! or the copy was freed ([`CopyTable::moved`](super::copy_table::CopyTable)).

use super::copy_table::{Account, Mover};
use super::device::Bytes;
use super::load::decompress;
use super::writing::Writing;
use super::{Swap, pool};
use rapidhash::v3::rapidhash_v3;
use std::ptr::NonNull;

/// Most copies that move together.
const BATCH: usize = 64;

/// Copies being moved. Dropping it waits.
#[derive(Debug)]
pub(super) struct WriteBack<'a> {
    swap: &'a Swap,
    // Declared before the pages, so that it is dropped first, and waits.
    writing: Option<Writing<'a>>,
    movers: Vec<Mover>,
    /// Contents of the movers.
    _pages: Vec<Box<Bytes>>,
}

impl Swap {
    /// Moves up to `pages` of the oldest compressed copies to files and devices, and returns how many. Makes
    /// room in memory ahead of need; when memory is full this happens automatically. May sleep.
    ///
    /// ```
    /// use slat::{Hva, Idle, PAGE_SIZE};
    /// use slat_mm::*;
    /// # let path = std::env::temp_dir().join(format!("slat-mm-write-back-{}", std::process::id()));
    ///
    /// let mut idle = Idle::take().unwrap();
    /// let arena = Arena::builder().limit(16 << 20).build()?;
    /// let swap = Swap::builder().memory(1 << 20).file(&path).build(&arena)?;
    /// let space = AddressSpace::builder(&arena).swap(&swap).build()?;
    /// let span = space.mmap(Place::Anywhere, 4 * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous)?;
    /// (0..4).try_for_each(|page| space.write(&mut idle, span.start + page * PAGE_SIZE, b"hello"))?;
    /// space.pageout(&mut idle, span)?;
    /// assert_eq!(swap.write_back(3), 3);
    /// assert_eq!(swap.stats().file_bytes, 3 * PAGE_SIZE);
    /// # Ok::<(), MmError>(())
    /// ```
    pub fn write_back(&self, pages: usize) -> usize {
        self.write_back_of(pages, None)
    }

    /// Moves copies of one owner, or of all.
    pub(crate) fn write_back_of(&self, pages: usize, owner: Option<&Account>) -> usize {
        let mut moved = 0;
        while moved < pages {
            let now = self.begin_write_back((pages - moved).min(BATCH), owner).wait();
            if now == 0 {
                break;
            }
            moved += now;
        }
        moved
    }

    pub(super) fn begin_write_back(&self, pages: usize, owner: Option<&Account>) -> WriteBack<'_> {
        if self.ports.is_empty() {
            return WriteBack { swap: self, writing: None, movers: Vec::new(), _pages: Vec::new() };
        }
        let all = self.table.lock().choose_movers(pages, owner);
        let (mut movers, mut pages) = (Vec::new(), Vec::new());
        for mover in all {
            let mut page = Box::new([0; super::device::PAGE]);
            let mut buffer = [0; pool::LARGEST];
            let is_whole = decompress(mover.extent.read(&self.arena, &mut buffer), &mut page);
            if is_whole && rapidhash_v3(&*page) == mover.sum {
                movers.push(mover);
                pages.push(page);
            } else {
                self.table.lock().put(&self.arena, mover.entry);
            }
        }
        let asked = pages.iter_mut().map(|page| NonNull::from(&mut **page));
        // SAFETY: only `WriteBack` uses them, and it waits before it drops them.
        let writing = (!movers.is_empty()).then(|| unsafe { Writing::begin(self, asked) });
        WriteBack { swap: self, writing, movers, _pages: pages }
    }
}

impl WriteBack<'_> {
    /// Waits, and returns how many have moved. May sleep.
    pub(super) fn wait(mut self) -> usize {
        self.finish()
    }

    fn finish(&mut self) -> usize {
        let places = self.writing.take().map_or_else(Vec::new, Writing::wait);
        let mut moved = 0;
        for (mover, place) in self.movers.drain(..).zip(places) {
            moved += usize::from(self.swap.table.lock().moved(&self.swap.arena, &mover, place));
        }
        moved
    }
}

impl Drop for WriteBack<'_> {
    fn drop(&mut self) {
        self.finish();
    }
}
