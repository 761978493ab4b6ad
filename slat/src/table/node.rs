//! A table page as the engine sees it, and the note that it keeps beside each.

use super::{CHUNK_BYTES, CHUNK_PAGES, ENTRIES, Entry, TableMemory, Word, page_notes};
use crate::addr::{Level, PAGE_SHIFT, PAGE_SIZE, Pfn};
use crate::slots::Hint;
use crate::sync::prim::read_whole;
use core::cell::Cell;
use core::ptr::NonNull;

/// The engine's own data beside a table page.
#[repr(C, align(64))]
pub(crate) struct Note {
    /// The page of this note.
    pub(crate) page: Node,
    /// The next page in the list that owns this one, while the page is in no table.
    pub(crate) next: Cell<Option<Node>>,
    /// The level of a dead table, until it is taken apart.
    pub(crate) level: Cell<Level>,
    /// The lowest bytes of the page's frame number.
    pfn: [u8; 7],
    /// The slot of a leaf table's frames.
    pub(crate) hint: Hint,
}

impl Note {
    /// Returns the frame of the page.
    pub(super) fn pfn(&self) -> Pfn {
        let [a, b, c, d, e, f, g] = self.pfn;
        Pfn(u64::from_le_bytes([a, b, c, d, e, f, g, 0]))
    }

    pub(super) fn new(page: Node, pfn: Pfn) -> Self {
        let [pfn @ .., _] = pfn.0.to_le_bytes();
        Self { page, next: Cell::new(None), level: Cell::new(Level::K4), pfn, hint: Hint::default() }
    }
}

/// The 512 entries of a table.
#[repr(C, align(4096))]
pub(crate) struct TablePage(pub(crate) [Entry; ENTRIES]);

/// A table page: a pointer of one word that is `Copy`.
///
/// A `Node` does not say whether its page is still in a table. Its holder decides who may follow it: a walk for its
/// section (the grace period keeps the page), a list of [`super::retire`], or the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Node(NonNull<TablePage>);

// SAFETY: a node is a pointer to atomics; its documentation says who may use it.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

const _: () = {
    assert!(size_of::<TablePage>() == PAGE_SIZE as usize);
    assert!(size_of::<Note>() == 64 && CHUNK_PAGES * size_of::<Note>() <= PAGE_SIZE as usize);
    assert!(size_of::<Option<Node>>() == 8);
};

impl Node {
    /// Returns the page of a link.
    ///
    /// # Safety
    /// `pfn` was read from a link of a table in `memory`, in the current section.
    #[inline(always)]
    pub(crate) unsafe fn follow<M: TableMemory>(memory: &M, pfn: Pfn) -> Self {
        Self(memory.at(pfn).cast())
    }

    /// Returns the node of the page at `page`.
    pub(crate) const fn new(page: NonNull<u8>) -> Self {
        Self(page.cast())
    }

    /// Returns the address of the page.
    pub(crate) fn page(self) -> NonNull<u8> {
        self.0.cast()
    }

    /// Returns the node `pages` pages after this one, in a root of several pages.
    #[inline(always)]
    pub(crate) fn beside(self, pages: usize) -> Self {
        Self(NonNull::new(self.0.as_ptr().wrapping_add(pages)).unwrap_or(self.0))
    }

    /// A node without a page. It must not be followed.
    pub(crate) const fn dangling() -> Self {
        Self(NonNull::dangling())
    }

    /// Returns the frame by which the hardware addresses the page, which the caller owns or reads.
    pub(crate) fn pfn(self, memory: &impl TableMemory) -> Pfn {
        // SAFETY: allocated while the caller has it.
        unsafe { self.note_in(memory) }.pfn()
    }

    /// Returns the entries.
    ///
    /// # Safety
    /// The page stays allocated for `'a`: the caller is in a section, or owns the page.
    #[inline(always)]
    pub(crate) unsafe fn entries<'a>(self) -> &'a [Entry; ENTRIES] {
        // SAFETY: table pages are always valid as 512 atomics, and allocated by the caller's contract.
        unsafe { &(*self.0.as_ptr()).0 }
    }

    /// Returns the entries as plain words.
    ///
    /// # Safety
    /// During `'a` no other thread reaches the page.
    pub(crate) unsafe fn words<'a>(self) -> &'a [u64; ENTRIES] {
        // SAFETY: an entry is one word, and by the caller's contract no other thread reads or writes it.
        let words = unsafe { &*self.0.as_ptr().cast() };
        read_whole(words);
        words
    }

    /// Returns the note of a page of `memory`.
    ///
    /// # Safety
    /// As [`entries`](Self::entries).
    #[inline(always)]
    pub(crate) unsafe fn note_in<'a, M: TableMemory>(self, _memory: &M) -> &'a Note {
        // SAFETY: the caller guarantees it; pages of chunks are never registered.
        unsafe { if M::SINGLE_PAGES { self.note() } else { self.note_in_chunk().as_ref() } }
    }

    /// Returns the note of a page of any memory. Without single pages in the process it costs one more load and
    /// comparison.
    ///
    /// # Safety
    /// As [`entries`](Self::entries).
    #[inline]
    pub(crate) unsafe fn note<'a>(self) -> &'a Note {
        // SAFETY: the caller guarantees it.
        unsafe { self.note_at().as_ref() }
    }

    /// Returns the place of the note, as a pointer that may reach the other notes of the chunk.
    ///
    /// # Safety
    /// As [`entries`](Self::entries).
    #[inline]
    pub(super) unsafe fn note_at(self) -> NonNull<Note> {
        let single = page_notes::find(self.0.cast()).map(NonNull::cast);
        // SAFETY: the caller guarantees it; pages of chunks are never registered.
        single.unwrap_or_else(|| unsafe { self.note_in_chunk() })
    }

    /// # Safety
    /// As [`entries`](Self::entries); and the page is part of a chunk.
    #[inline(always)]
    unsafe fn note_in_chunk(self) -> NonNull<Note> {
        let page = self.0.cast::<u8>();
        let offset = page.as_ptr().addr() & (CHUNK_BYTES - 1);
        // SAFETY: both are in one chunk, whose first page holds initialised notes.
        unsafe { page.sub(offset).cast::<Note>().add(offset >> PAGE_SHIFT) }
    }

    /// Fills a page that no other thread reaches with one word.
    pub(crate) fn fill(self, word: Word) {
        // SAFETY: the caller owns the page, which is in no table yet.
        let entries = unsafe { self.entries() };
        for entry in entries {
            entry.fill(word);
        }
    }

    /// Fills a page that is no longer in a table with [`inject::GIVEN_BACK`](crate::inject::GIVEN_BACK), so that an
    /// explorer detects walks that still use it.
    #[cfg(explored)]
    pub(crate) fn give_back(self) {
        // SAFETY: the caller owns the page.
        let entries = unsafe { self.entries() };
        entries.iter().for_each(Entry::give_back);
    }
}
