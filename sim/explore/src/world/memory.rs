//! Memory for tables, whose frames have the same numbers in each run of a plan.
//!
//! One worker's worlds come one after the other, and use the same memory: pages are not found clean. A frame that is no table
//! page leads to a page of words that only the engine writes, into pages that it has taken apart
//! ([`GIVEN_BACK`]): a walk that loads one has strayed.

use slat::inject::GIVEN_BACK;
use slat::table::TableMemory;
use slat::{PAGE_SIZE, Pfn};
use std::alloc::{Layout, alloc_zeroed};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Chunks of one world; and one more, for pages that are none.
const CHUNKS: usize = 96;
const CHUNK: usize = slat::table::memory::CHUNK_BYTES;
const PAGES: usize = CHUNK / PAGE_SIZE as usize;
/// The host's frames are below.
const FIRST: u64 = 1 << 24;

/// Arenas that no world uses.
static SPARE: Mutex<Vec<Arena>> = Mutex::new(Vec::new());

struct Arena(NonNull<u8>);

// SAFETY: memory that belongs to the owner of the value.
unsafe impl Send for Arena {}

/// See the module's header.
pub struct Memory {
    base: NonNull<u8>,
    lent: AtomicUsize,
    back: AtomicUsize,
}

// SAFETY: all CPUs of a world are one thread to the machine.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Nothing is lent yet.
    pub fn new() -> Self {
        let spare = SPARE.lock().expect("nothing panics here").pop();
        let base = spare.map_or_else(fresh, |arena| arena.0);
        Self { base, lent: AtomicUsize::new(0), back: AtomicUsize::new(0) }
    }

    /// Chunks that have not come back.
    pub fn missing(&self) -> usize {
        self.lent.load(Relaxed) - self.back.load(Relaxed)
    }

    /// Whether tables lie at this address.
    pub fn holds(&self, address: usize) -> bool {
        address.wrapping_sub(self.base.as_ptr().addr()) < self.lent.load(Relaxed) * CHUNK
    }

    /// Whether the word at an address, which lies in a table, is `word`.
    pub fn is_word(&self, address: usize, word: u64) -> bool {
        let offset = address - self.base.as_ptr().addr();
        // SAFETY: inside what was lent, says the caller; all words there are atomics.
        unsafe { self.base.add(offset & !7).cast::<AtomicU64>().as_ref() }.load(Relaxed) == word
    }

    /// A word of a table, loaded without the machine's knowledge.
    pub fn peek(&self, table: Pfn, index: usize) -> u64 {
        let page = self.at(table).cast::<AtomicU64>();
        // SAFETY: a page of 512 words, all of which are atomics.
        unsafe { page.add(index).as_ref() }.load(Relaxed)
    }
}

fn fresh() -> NonNull<u8> {
    let layout = Layout::from_size_align((CHUNKS + 1) * CHUNK, CHUNK).expect("a power of two");
    // SAFETY: not of size zero.
    let base = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("address space");
    for word in 0..512 {
        // SAFETY: the first page of the last chunk, which is never lent.
        unsafe { base.add(CHUNKS * CHUNK).cast::<u64>().add(word).write(GIVEN_BACK.0) };
    }
    base
}

impl Drop for Memory {
    fn drop(&mut self) {
        SPARE.lock().expect("nothing panics here").push(Arena(self.base));
    }
}

// SAFETY: each chunk is lent once, and its two names are arithmetic.
unsafe impl TableMemory for Memory {
    fn alloc_chunk(&self) -> Option<NonNull<u8>> {
        let chunk = self.lent.load(Relaxed);
        if chunk == CHUNKS {
            return None;
        }
        self.lent.store(chunk + 1, Relaxed);
        // SAFETY: inside.
        Some(unsafe { self.base.add(chunk * CHUNK) })
    }

    unsafe fn free_chunk(&self, _: NonNull<u8>) {
        self.back.fetch_add(1, Relaxed);
    }

    fn pfn(&self, page: NonNull<u8>) -> Pfn {
        Pfn(FIRST + (page.as_ptr().addr() - self.base.as_ptr().addr()) as u64 / PAGE_SIZE)
    }

    fn at(&self, frame: Pfn) -> NonNull<u8> {
        let index = frame.0.wrapping_sub(FIRST) as usize;
        let index = if index < self.lent.load(Relaxed) * PAGES { index } else { CHUNKS * PAGES };
        // SAFETY: inside.
        unsafe { self.base.add(index * PAGE_SIZE as usize) }
    }
}
