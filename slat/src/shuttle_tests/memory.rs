//! Memory for tables that knows which of its pages are tables.
//!
//! A page that is given back is filled with a word that nobody else writes ([`GIVEN_BACK`]), and whoever loads it later has
//! strayed. A frame number that is no table page leads to a trap: a page of such words.

use crate::addr::Pfn;
use crate::table::memory::{CHUNK_BYTES, CHUNK_PAGES, write_notes};
use crate::table::{Entry, Version, Word};
use std::alloc::{Layout, alloc_zeroed};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread_local;

/// In every entry of a page that is in no table: the newest hole that there can be, which nobody fills.
pub(crate) const GIVEN_BACK: Word = Word::hole(Version((1 << Version::BITS) - 1));

/// Chunks for one VM; and one more, for the trap.
const CHUNKS: usize = 4;
/// Frames of the host are below, at first, or far above.
const FIRST: u64 = 0x1_0000;

thread_local! {
    static STRAYED: Cell<bool> = const { Cell::new(false) };
    /// Executions come one after the other, each with one VM: they use the same memory.
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

/// See the module's header.
pub(super) struct Memory {
    base: NonNull<u8>,
    lent: AtomicUsize,
}

// SAFETY: all threads of an execution are one to the machine.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn new() -> Self {
        STRAYED.set(false);
        let memory = Self { base: BASE.with(|base| *base), lent: AtomicUsize::new(0) };
        // SAFETY: a chunk that is never lent.
        unsafe { write_notes(memory.base.add(CHUNKS * CHUNK_BYTES)) };
        memory
    }

    /// Whether anybody came to a page that was no table any more.
    pub(super) fn strayed() -> bool {
        STRAYED.get()
    }

    /// Chunks that have not come back.
    pub(super) fn lent(&self) -> usize {
        self.lent.load(Relaxed)
    }

    pub(super) fn lend(&self) -> Option<NonNull<u8>> {
        let chunk = self.lent.fetch_add(1, Relaxed);
        assert!(chunk < CHUNKS, "a scenario needs no more");
        // SAFETY: inside.
        Some(unsafe { self.base.add(chunk * CHUNK_BYTES) })
    }

    pub(super) fn take_back(&self) {
        self.lent.fetch_sub(1, Relaxed);
    }

    pub(super) fn frame(&self, page: NonNull<u8>) -> Pfn {
        Pfn(FIRST + (page.as_ptr().addr() - self.base.as_ptr().addr()) as u64 / 4096)
    }

    /// The page of a frame: the trap, where it is none of ours.
    pub(super) fn page(&self, frame: Pfn) -> NonNull<u8> {
        let index = frame.0.wrapping_sub(FIRST) as usize;
        if index < self.lent() * CHUNK_PAGES {
            // SAFETY: inside.
            return unsafe { self.base.add(index * 4096) };
        }
        STRAYED.set(true);
        // SAFETY: inside: the first page of the last chunk behind its notes.
        let trap = unsafe { self.base.add(CHUNKS * CHUNK_BYTES + 4096) };
        for index in 0..512 {
            // SAFETY: a page of words, all of which are atomics.
            unsafe { trap.cast::<Entry>().add(index).as_ref() }.fill(GIVEN_BACK);
        }
        trap
    }
}
