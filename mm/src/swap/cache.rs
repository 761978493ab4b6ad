//! The swap cache: frames that hold what a copy holds, while entries of several address spaces share the one or the other.
//!
//! ```text
//!            space A          space B          space C
//!            entry            entry            entry
//! shared     frame ◀───────── frame ◀───────── frame                 a fork's share: written by no thread
//! A's goes   copy ──┐         frame            frame                 stored once; the cache has a reference to the frame
//! B's goes   copy ◀─┴──────── copy             frame                 not stored again: one reference more to the copy
//! A's back   frame            copy             frame                 not read: one reference more to the frame
//! all go     copy             copy             copy                  the frame is free
//! ```
//! **Each address space evicts its own entries**, as it finds them cold: there is no map from a frame to all entries. What the cache says
//! makes that as good: one write, one copy, and as many references as entries.
//!
//! **Why both hold the same.** A frame is cached while a reference of the cache's own keeps it: so no entry that maps it is its only owner, and
//! a thread that writes gets another frame. The copy never changes. A frame is cached together with a copy right after
//! it was stored, or read, by the thread that has a reference to it; or while another entry shares it.
//!
//! **When it ends**: where the copy has no reference left, since all entries say the frame again; and where no entry maps the frame any more.
//! The thread that takes the last entry to swap sees that. Others that take one away (a write that breaks the share, munmap, exit) leave the frame to the
//! cache, for those whose entries say the copy; the arena notes it, and the next thread that needs room takes it
//! ([`Swap::drop_unmapped`]), before it evicts anything.

use super::books::Books;
use super::entry::SwapEntry;
use super::{HeldCopy, Swap};
use crate::arena::Arena;
use crate::held::Held;
use slat::{Level, Pfn, Span};

impl Books {
    /// The frame holds what the copy holds, from now on for all to know. The caller has a reference to both.
    fn cache(&mut self, arena: &Arena, entry: SwapEntry, pfn: Pfn) {
        let row = &mut self.rows[entry.0 as usize];
        if entry != SwapEntry::ZERO && row.frame.is_none() && !self.cached.contains_key(&pfn) {
            row.frame = Some(pfn);
            self.cached.insert(pfn, entry);
            if !seeded!(CacheUncounted) {
                arena.share(Span::sized(pfn, 1));
            }
            arena.set_cached(pfn, true);
        }
    }

    /// The copy has no frame any more, if it had one.
    pub(super) fn uncache(&mut self, arena: &Arena, entry: SwapEntry) {
        if let Some(pfn) = self.rows[entry.0 as usize].frame.take() {
            self.cached.remove(&pfn);
            arena.set_cached(pfn, false);
            arena.put(Span::sized(pfn, 1));
        }
    }

    /// The frame goes, if no more than so many references to it are left beside the cache's; whether it did.
    fn uncache_unmapped(&mut self, arena: &Arena, pfn: Pfn, others: u32) -> bool {
        let entry = self.cached.get(&pfn).copied().filter(|_| arena.references(pfn) <= others + 1);
        entry.inspect(|&entry| self.uncache(arena, entry)).is_some()
    }
}

impl Swap {
    /// The copy that holds what the frame holds, if one is known. The caller has a reference to the frame.
    pub(super) fn copy_of(&self, pfn: Pfn) -> Option<HeldCopy<'_>> {
        if !self.arena.is_cached(pfn) {
            return None;
        }
        let mut books = self.books.lock();
        let entry = *books.cached.get(&pfn)?;
        if !seeded!(ShareUncounted) {
            books.hold(entry);
        }
        Some(HeldCopy::new(self, entry))
    }

    /// The frame that holds what the copy holds, if there is one, with a reference more.
    pub(super) fn frame_of(&self, copy: &HeldCopy<'_>) -> Option<Held<'_>> {
        let books = self.books.lock();
        let pfn = books.rows[copy.entry().0 as usize].frame?;
        self.arena.share(Span::sized(pfn, 1));
        Some(Held::new(&self.arena, pfn, Level::K4))
    }

    /// The copy was read into `fresh`, which no entry maps yet: the frame to map. Where others refer to the copy they share it.
    pub(super) fn share_loaded<'a>(&'a self, copy: &HeldCopy<'_>, fresh: Held<'a>) -> Held<'a> {
        // One is the caller's, one the entry's.
        let mut books = self.books.lock();
        if books.rows[copy.entry().0 as usize].references > 2 {
            books.cache(&self.arena, copy.entry(), fresh.pfn());
        }
        drop(books);
        self.frame_of(copy).unwrap_or(fresh)
    }

    /// An entry that maps the frame is to say the copy, which holds the same, next; whether others map it still. The caller has a
    /// reference to both.
    pub(super) fn keep_for_others(&self, copy: &HeldCopy<'_>, pfn: Pfn) -> bool {
        // One reference is the caller's, one the entry's.
        if self.arena.references(pfn) <= 2 {
            return false;
        }
        let mut books = self.books.lock();
        if books.uncache_unmapped(&self.arena, pfn, 2) || self.arena.references(pfn) <= 2 {
            return false;
        }
        books.cache(&self.arena, copy.entry(), pfn);
        true
    }

    /// Frees the cached frames that no entry maps any more; how many. Their copies stay.
    pub(crate) fn drop_unmapped(&self) -> u64 {
        let mut books = self.books.lock();
        let unmapped = self.arena.take_unmapped(|pfn| books.cached.contains_key(pfn));
        unmapped.into_iter().filter(|&pfn| books.uncache_unmapped(&self.arena, pfn, 0)).count() as u64
    }
}
