//! Memory for tables, in one piece, under frame numbers that no page of the host ever has. A walker whose table was
//! freed follows a stray link: it then finds no table there, and reports that instead of reading arbitrary memory.

use slat::Pfn;
use slat::table::memory::{CHUNK_BYTES, CHUNK_PAGES};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Mutex;

/// 16 MiB: many times what the tables need.
const CHUNKS: usize = 64;
const FIRST: u64 = 0x100;

pub struct Arena {
    base: NonNull<u8>,
    free: Mutex<Vec<usize>>,
}

// SAFETY: memory of its own; `free` says which chunk has a user.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

fn layout() -> Layout {
    Layout::from_size_align(CHUNKS * CHUNK_BYTES, CHUNK_BYTES).expect("a power of two")
}

impl Arena {
    pub fn new() -> Self {
        // SAFETY: not of size zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout()) }).expect("16 MiB");
        Self { base, free: Mutex::new((0..CHUNKS).rev().collect()) }
    }

    pub fn lend(&self) -> Option<(NonNull<u8>, Pfn)> {
        let chunk = self.free.lock().unwrap().pop()?;
        // SAFETY: inside.
        Some((unsafe { self.base.add(chunk * CHUNK_BYTES) }, Pfn(FIRST + (chunk * CHUNK_PAGES) as u64)))
    }

    pub fn take_back(&self, chunk: NonNull<u8>) {
        self.free.lock().unwrap().push(self.offset(chunk) / CHUNK_BYTES);
    }

    /// Returns the page of a frame of this arena.
    pub fn page(&self, frame: Pfn) -> Option<NonNull<u8>> {
        let index = frame.0.checked_sub(FIRST).filter(|&index| index < (CHUNKS * CHUNK_PAGES) as u64)?;
        // SAFETY: inside.
        Some(unsafe { self.base.add((index as usize) << 12) })
    }

    fn offset(&self, at: NonNull<u8>) -> usize {
        at.as_ptr().addr() - self.base.as_ptr().addr()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout; every chunk has come back.
        unsafe { dealloc(self.base.as_ptr(), layout()) }
    }
}
