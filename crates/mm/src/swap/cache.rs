//! The swap cache: frames that equal a copy, while entries of several address spaces share the frame or the
//! copy.
//!
//! ```text
//!                space A          space B          space C
//!                entry            entry            entry
//! shared         frame ◀───────── frame ◀───────── frame              shared by forks: no thread writes to it
//! A evicts       copy ──┐         frame            frame              stored once; the cache has a reference to the frame
//! B evicts       copy ◀─┴──────── copy             frame              not stored again: one more reference to the copy
//! A faults       frame            copy             frame              not read: one more reference to the frame
//! all evict      copy             copy             copy               the frame is free
//! ```
//! **Each address space evicts its own entries**, when it finds them cold; there is no map from a frame to all
//! its entries. With the cache the cost is still one write, one copy, and one reference per entry.
//!
//! **Why both hold the same contents.** The cache has its own reference to the frame. So no entry that maps the
//! frame is its only owner, and a thread that writes gets another frame. The copy never changes. A thread
//! caches the frame with its copy right after it has stored or read the copy, or while another entry shares it.
//! The thread has a reference to the frame.
//!
//! **When a frame leaves the cache**: when the copy has no reference left, since all entries map the frame
//! again; and when no entry maps the frame. The thread that swaps out the last entry notices the latter. Other
//! threads that remove an entry (a broken share, munmap, exit) leave the frame to the cache, for entries that
//! point to the copy. The arena records the frame, and the next thread that needs room frees it
//! ([`Swap::drop_unmapped`]) before it evicts.

use super::copy_table::CopyTable;
use super::entry::SwapEntry;
use super::{HeldCopy, Swap};
use crate::arena::Arena;
use crate::held::Held;
use slat::{Level, Pfn, Span};

impl CopyTable {
    /// Records that the frame equals the copy. The caller has a reference to both.
    fn cache(&mut self, arena: &Arena, entry: SwapEntry, pfn: Pfn) {
        let row = &mut self.rows[entry.0 as usize];
        if entry != SwapEntry::ZERO && row.frame.is_none() && !self.cached.contains_key(&pfn) {
            row.frame = Some(pfn);
            self.cached.insert(pfn, entry);
            arena.share(Span::sized(pfn, 1));
            arena.set_cached(pfn, true);
        }
    }

    /// Drops the copy's frame, if it has one.
    pub(super) fn uncache(&mut self, arena: &Arena, entry: SwapEntry) {
        if let Some(pfn) = self.rows[entry.0 as usize].frame.take() {
            self.cached.remove(&pfn);
            arena.set_cached(pfn, false);
            arena.put(Span::sized(pfn, 1));
        }
    }

    /// Drops the frame if at most `others` references remain beside the cache's; returns whether it did.
    fn uncache_unmapped(&mut self, arena: &Arena, pfn: Pfn, others: u32) -> bool {
        let entry = self.cached.get(&pfn).copied().filter(|_| arena.references(pfn) <= others + 1);
        entry.inspect(|&entry| self.uncache(arena, entry)).is_some()
    }
}

impl Swap {
    /// Returns the copy that equals the frame, if one is known. The caller has a reference to the frame.
    pub(crate) fn copy_of(&self, pfn: Pfn) -> Option<HeldCopy<'_>> {
        if !self.arena.is_cached(pfn) {
            return None;
        }
        let mut table = self.table.lock();
        let entry = *table.cached.get(&pfn)?;
        table.hold(entry);
        Some(HeldCopy::new(self, entry))
    }

    /// Returns the frame that equals the copy, if there is one, with a reference.
    pub(crate) fn frame_of(&self, copy: &HeldCopy<'_>) -> Option<Held<'_>> {
        let table = self.table.lock();
        let pfn = table.rows[copy.entry().0 as usize].frame?;
        self.arena.share(Span::sized(pfn, 1));
        Some(Held::new(&self.arena, pfn, Level::K4))
    }

    /// Returns the frame to map after the copy was read into `fresh`, which no entry maps yet. Other entries
    /// that refer to the copy will share it.
    pub(crate) fn share_loaded<'a>(&'a self, copy: &HeldCopy<'_>, fresh: Held<'a>) -> Held<'a> {
        // One reference is the caller's, one the entry's.
        let mut table = self.table.lock();
        if table.rows[copy.entry().0 as usize].references > 2 {
            table.cache(&self.arena, copy.entry(), fresh.pfn());
        }
        drop(table);
        self.frame_of(copy).unwrap_or(fresh)
    }

    /// Caches the frame if other entries still map it; returns whether they do. The caller is about to make an
    /// entry that maps it point to the copy, and has a reference to both.
    pub(crate) fn keep_for_others(&self, copy: &HeldCopy<'_>, pfn: Pfn) -> bool {
        // One reference is the caller's, one the entry's.
        if self.arena.references(pfn) <= 2 {
            return false;
        }
        let mut table = self.table.lock();
        if table.uncache_unmapped(&self.arena, pfn, 2) || self.arena.references(pfn) <= 2 {
            return false;
        }
        table.cache(&self.arena, copy.entry(), pfn);
        true
    }

    /// Frees cached frames that no entry maps any more; returns how many. Their copies stay.
    pub(crate) fn drop_unmapped(&self) -> u64 {
        let mut table = self.table.lock();
        let unmapped = self.arena.take_unmapped(|pfn| table.cached.contains_key(pfn));
        unmapped.into_iter().filter(|&pfn| table.uncache_unmapped(&self.arena, pfn, 0)).count() as u64
    }
}
