//! An arena as the memory for page tables.

use super::{Arena, TABLE};
use crate::frames::Unit;
use slat::table::TableMemory;
use slat::{Pfn, Span};
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
// one owner; a frame number is an offset in the mapping.
unsafe impl TableMemory for ArenaHandle {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        let pfn = self.arena.nearest(|node| node.take_unit(Unit::Chunk))?;
        for page in 0..pages as u64 {
            self.arena.begin_use(pfn + page, TABLE, false);
        }
        self.arena.table_frames.fetch_add(pages as u64, Relaxed);
        Some((self.at(pfn), pfn))
    }

    unsafe fn take_back(&self, _: NonNull<u8>, pfn: Pfn, pages: usize) {
        self.arena.table_frames.fetch_sub(pages as u64, Relaxed);
        self.arena.put(Span::sized(pfn, pages as u64));
    }

    #[inline(always)]
    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        // SAFETY: a frame of a chunk lies in the mapping.
        unsafe { self.base.add(pfn.address() as usize) }
    }
}
