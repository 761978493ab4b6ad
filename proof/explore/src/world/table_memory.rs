//! Memory for tables, with the same frame numbers in each run of a plan.
//!
//! The worlds of one worker follow one another and use the same memory, so pages are not clean at the start. A frame
//! that is not a table page leads to a page of words that only the engine writes, into freed table pages
//! ([`GIVEN_BACK`]). A walk that loads such a word has used a freed table.

use slat::inject::GIVEN_BACK;
use slat::{PAGE_SIZE, Pfn};
use std::alloc::{Layout, alloc_zeroed};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Chunks per world, and one more for frames that are not table pages.
const CHUNKS: usize = 96;
const CHUNK: usize = slat::table::memory::CHUNK_BYTES;
const PAGES: usize = CHUNK / PAGE_SIZE as usize;
/// The host's frames are below this number.
const FIRST: u64 = 1 << 24;

/// Memory that no world uses.
static SPARE: Mutex<Vec<Memory>> = Mutex::new(Vec::new());

/// The memory of one world.
pub struct Memory {
    base: NonNull<u8>,
    lent: AtomicUsize,
    back: AtomicUsize,
}

// SAFETY: all CPUs of a world run on one thread.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory of which nothing is lent.
    pub fn new() -> Self {
        SPARE.lock().expect("nothing panics here").pop().unwrap_or_else(|| Self::at_base(fresh()))
    }

    fn at_base(base: NonNull<u8>) -> Self {
        Self { base, lent: AtomicUsize::new(0), back: AtomicUsize::new(0) }
    }

    /// Chunks that have not been returned.
    pub fn missing(&self) -> usize {
        self.lent.load(Relaxed) - self.back.load(Relaxed)
    }

    /// Returns whether tables lie at this address.
    pub fn holds(&self, address: usize) -> bool {
        address.wrapping_sub(self.base.as_ptr().addr()) < self.lent.load(Relaxed) * CHUNK
    }

    /// Returns whether the word at this address in a table equals `word`.
    pub fn is_word(&self, address: usize, word: u64) -> bool {
        let offset = address - self.base.as_ptr().addr();
        // SAFETY: the caller guarantees an address inside of lent memory, whose words are atomics.
        unsafe { self.base.add(offset & !7).cast::<AtomicU64>().as_ref() }.load(Relaxed) == word
    }

    /// Lends a chunk that is not lent yet, with the number of its first frame; `None` if all are.
    pub fn lend(&self) -> Option<(NonNull<u8>, Pfn)> {
        let chunk = self.lent.load(Relaxed);
        if chunk == CHUNKS {
            return None;
        }
        self.lent.store(chunk + 1, Relaxed);
        // SAFETY: inside of the memory.
        Some((unsafe { self.base.add(chunk * CHUNK) }, Pfn(FIRST + (chunk * CHUNK) as u64 / PAGE_SIZE)))
    }

    /// Counts a chunk that came back. It is not lent again.
    pub fn count_back(&self) {
        self.back.fetch_add(1, Relaxed);
    }

    /// The page with this frame number.
    pub fn at(&self, frame: Pfn) -> NonNull<u8> {
        let index = frame.0.wrapping_sub(FIRST) as usize;
        let index = if index < self.lent.load(Relaxed) * PAGES { index } else { CHUNKS * PAGES };
        // SAFETY: inside of the memory.
        unsafe { self.base.add(index * PAGE_SIZE as usize) }
    }

    /// Loads a word of a table without virtual time.
    pub fn peek(&self, table: Pfn, index: usize) -> u64 {
        let page = self.at(table).cast::<AtomicU64>();
        // SAFETY: a page of 512 words, all of which are atomics.
        unsafe { page.add(index).as_ref() }.load(Relaxed)
    }
}

fn fresh() -> NonNull<u8> {
    let layout = Layout::from_size_align((CHUNKS + 1) * CHUNK, CHUNK).expect("a power of two");
    // SAFETY: the size is not zero.
    let base = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("address space");
    for word in 0..512 {
        // SAFETY: the first page of the last chunk, which is never lent.
        unsafe { base.add(CHUNKS * CHUNK).cast::<u64>().add(word).write(GIVEN_BACK.0) };
    }
    base
}

impl Drop for Memory {
    fn drop(&mut self) {
        SPARE.lock().expect("nothing panics here").push(Self::at_base(self.base));
    }
}
