//! Memory for tables that knows which of its pages are tables.
//!
//! A page that is given back is filled with a word that is written nowhere else ([`GIVEN_BACK`]): a thread that loads
//! this word has strayed. A frame number of no table page leads to a trap, a page of such words.

use crate::addr::Pfn;
use crate::table::memory::{CHUNK_BYTES, CHUNK_PAGES};
use crate::table::{Entry, Version, Word};
use std::alloc::{Layout, alloc_zeroed};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread_local;

/// The value of every entry of a page that is in no table: the newest possible hole, which no fault fills.
pub(crate) const GIVEN_BACK: Word = Word::hole(Version((1 << Version::BITS) - 1));

/// Chunks for one VM. One more is the trap.
const CHUNKS: usize = 64;
/// The first frame of table pages. The host's frames are below it, or far above.
const FIRST: u64 = 0x1_0000;

thread_local! {
    static STRAYED: Cell<bool> = const { Cell::new(false) };
    /// Executions run one after the other, each with one VM: they share this memory.
    static BASE: NonNull<u8> = {
        let layout = Layout::from_size_align((CHUNKS + 1) * CHUNK_BYTES, CHUNK_BYTES).expect("a power of two");
        // SAFETY: not of size zero.
        NonNull::new(unsafe { alloc_zeroed(layout) }).expect("a MiB")
    };
}

/// Called where an entry of a table is loaded.
pub(crate) fn looked(word: Word) {
    if word == GIVEN_BACK {
        STRAYED.set(true);
    }
}

/// Memory for the tables of one VM. See the module's header.
pub(super) struct Memory {
    base: NonNull<u8>,
    /// Bitmap of the chunks that are lent.
    lent: AtomicU64,
}

// SAFETY: all threads of an execution are one to the machine.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn new() -> Self {
        STRAYED.set(false);
        Self { base: BASE.with(|base| *base), lent: AtomicU64::new(0) }
    }

    /// Whether a thread loaded an entry of a page that was no table any more.
    pub(super) fn strayed() -> bool {
        STRAYED.get()
    }

    /// Returns the number of chunks that are lent.
    pub(super) fn lent(&self) -> u32 {
        self.lent.load(Relaxed).count_ones()
    }

    pub(super) fn lend(&self) -> Option<(NonNull<u8>, Pfn)> {
        let lent = self.lent.load(Relaxed);
        let chunk = lent.trailing_ones() as usize;
        if chunk == CHUNKS {
            return None;
        }
        self.lent.store(lent | 1 << chunk, Relaxed);
        // SAFETY: inside.
        Some((unsafe { self.base.add(chunk * CHUNK_BYTES) }, Pfn(FIRST + (chunk * CHUNK_PAGES) as u64)))
    }

    pub(super) fn take_back(&self, chunk: NonNull<u8>) {
        let index = (chunk.as_ptr().addr() - self.base.as_ptr().addr()) / CHUNK_BYTES;
        assert!(self.lent.load(Relaxed) >> index & 1 == 1, "lent, and once");
        self.lent.fetch_xor(1 << index, Relaxed);
    }

    /// Returns the page of a frame; the trap for a frame of no table page.
    pub(super) fn page(&self, frame: Pfn) -> NonNull<u8> {
        let index = frame.0.wrapping_sub(FIRST) as usize;
        let is_lent = |chunk: usize| chunk < CHUNKS && self.lent.load(Relaxed) >> chunk & 1 == 1;
        if is_lent(index / CHUNK_PAGES) {
            // SAFETY: inside.
            return unsafe { self.base.add(index * 4096) };
        }
        STRAYED.set(true);
        // SAFETY: inside: the second page of a chunk that is never lent.
        let trap = unsafe { self.base.add(CHUNKS * CHUNK_BYTES + 4096) };
        for index in 0..512 {
            // SAFETY: a page of words, all of which are atomics.
            unsafe { trap.cast::<Entry>().add(index).as_ref() }.fill(GIVEN_BACK);
        }
        trap
    }
}
