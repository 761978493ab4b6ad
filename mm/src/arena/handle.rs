//! An arena as the memory for page tables.

use super::{Arena, TABLE};
use crate::frames::Unit;
use slat::table::TableMemory;
use slat::table::memory::CHUNK_PAGES;
use slat::{PAGE_SIZE, Pfn, Span};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// An arena as [`TableMemory`]: cheap to clone; one load from a frame number to its bytes.
#[derive(Clone, Debug)]
pub struct ArenaHandle {
    arena: Arc<Arena>,
    base: NonNull<u8>,
}

// SAFETY: a pointer into the arena's mapping, which the `Arc` keeps.
unsafe impl Send for ArenaHandle {}
// SAFETY: as above.
unsafe impl Sync for ArenaHandle {}

impl ArenaHandle {
    /// Returns the arena.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }
}

impl From<&Arc<Arena>> for ArenaHandle {
    fn from(arena: &Arc<Arena>) -> Self {
        Self { arena: arena.clone(), base: arena.base() }
    }
}

// SAFETY: chunks are aligned since their first frames and the base are; the allocator's bits give each chunk to
// one owner; `at` and `pfn` add and subtract the same base.
unsafe impl TableMemory for ArenaHandle {
    fn alloc_chunk(&self) -> Option<NonNull<u8>> {
        let pfn = self.arena.nearest(|node| node.take_unit(Unit::Chunk))?;
        for page in 0..CHUNK_PAGES as u64 {
            self.arena.begin_use(pfn + page, TABLE, false);
        }
        self.arena.table_frames.fetch_add(CHUNK_PAGES as u64, Relaxed);
        Some(self.at(pfn))
    }

    unsafe fn free_chunk(&self, chunk: NonNull<u8>) {
        self.arena.table_frames.fetch_sub(CHUNK_PAGES as u64, Relaxed);
        self.arena.put(Span::sized(self.pfn(chunk), CHUNK_PAGES as u64));
    }

    #[inline(always)]
    fn pfn(&self, page: NonNull<u8>) -> Pfn {
        Pfn((page.as_ptr().addr() - self.base.as_ptr().addr()) as u64 / PAGE_SIZE)
    }

    #[inline(always)]
    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        // SAFETY: a frame of a chunk lies in the mapping.
        unsafe { self.base.add(pfn.address() as usize) }
    }
}
