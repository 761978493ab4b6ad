//! Where table pages live, and what the engine remembers beside each.
//!
//! The host lends memory in naturally aligned **chunks** of 64 pages. The first page of a chunk holds one
//! 64-byte note for each of the others, so the way from a table page to its note is arithmetic on the pointer:
//! no search, no second allocation, 1.6% of the tables (0.003% of what they map).
//!
//! ```text
//! chunk (256 KiB, aligned)   [ note 0 | note 1 … note 63 ] [ page 1 ] [ page 2 ] … [ page 63 ]
//!                              └ chunk's own   └────────────── belongs to ────────────┘
//! ```

use super::entry::{Entry, Word};
use crate::addr::{INDEX_BITS, PAGE_SHIFT, PAGE_SIZE, Pfn};
use crate::slots::Hint;
use crate::sync::prim::read_whole;
use alloc::alloc::{Layout, alloc, dealloc};
use core::cell::Cell;
use core::ptr::NonNull;

/// Pages in a chunk.
pub const CHUNK_PAGES: usize = 64;
/// Bytes in a chunk, and its alignment.
pub const CHUNK_BYTES: usize = CHUNK_PAGES << PAGE_SHIFT;
/// Entries in a table page.
pub(crate) const ENTRIES: usize = 1 << INDEX_BITS;

/// The memory that tables are made of, and its two names: a pointer for the engine, a frame for the hardware.
///
/// Every method has a default: chunks from the global allocator, with a frame number that *is* the address.
/// That is right wherever the walker of the tables is software in this process; a hypervisor overrides all four.
///
/// # Safety
/// `alloc_chunk` must return memory of [`CHUNK_BYTES`], aligned to as much, that nobody else uses until
/// `free_chunk`; `at` and `pfn` must be each other's inverse for every page of such chunks, and stay so. The frame must fit
/// the address bits of the format that links it ([`Format::ADDRESS`](super::Format::ADDRESS)).
pub unsafe trait TableMemory: Send + Sync {
    /// A chunk with any contents, or `None` where there is no more. May sleep.
    fn alloc_chunk(&self) -> Option<NonNull<u8>> {
        // SAFETY: the layout has a size that is not zero.
        NonNull::new(unsafe { alloc(chunk_layout()) })
    }

    /// Takes a chunk back.
    ///
    /// # Safety
    /// `chunk` came from [`alloc_chunk`](Self::alloc_chunk) of the same memory, once, and nothing uses it any more.
    unsafe fn free_chunk(&self, chunk: NonNull<u8>) {
        // SAFETY: allocated above with this layout, says the caller.
        unsafe { dealloc(chunk.as_ptr(), chunk_layout()) }
    }

    /// The frame number under which the hardware knows the page at `page`.
    #[inline(always)]
    fn pfn(&self, page: NonNull<u8>) -> Pfn {
        Pfn(page.as_ptr().expose_provenance() as u64 >> PAGE_SHIFT)
    }

    /// Where this process sees the table page `pfn`.
    #[inline(always)]
    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        let page = core::ptr::with_exposed_provenance_mut(pfn.address() as usize);
        // SAFETY: a frame of a chunk is never frame zero: the null page is not allocated.
        unsafe { NonNull::new_unchecked(page) }
    }
}

/// Table memory from the global allocator, identity mapped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

// SAFETY: the trait's defaults keep its contract.
unsafe impl TableMemory for Heap {}

const fn chunk_layout() -> Layout {
    match Layout::from_size_align(CHUNK_BYTES, CHUNK_BYTES) {
        Ok(layout) => layout,
        Err(_) => panic!("a power of two"),
    }
}

/// What the engine remembers beside a table page.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Note {
    /// The next page in the list that owns this one, while it is in no table.
    pub(crate) next: Cell<Option<Node>>,
    /// The level of a dead table, while it waits to be taken apart.
    pub(crate) level: Cell<u8>,
    /// The slot that the frames of a leaf table belong to.
    pub(crate) hint: Hint,
}

/// The 512 entries of a table.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(crate) struct TablePage(pub(crate) [Entry; ENTRIES]);

/// A table page in the engine's hands: a pointer that is one word and `Copy`.
///
/// A `Node` does not say that its page is still in a table. Who may follow one is decided by who holds it:
/// a walk, for its section (the grace period keeps the page); a list of [`super::retire`]; or the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Node(NonNull<TablePage>);

// SAFETY: a node is a pointer to atomics; who may use it is decided as its documentation says.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

const _: () = {
    assert!(size_of::<TablePage>() == PAGE_SIZE as usize);
    assert!(size_of::<Note>() == 64 && CHUNK_PAGES * size_of::<Note>() == PAGE_SIZE as usize);
    assert!(size_of::<Option<Node>>() == 8);
};

impl Node {
    /// The page that a link leads to.
    ///
    /// # Safety
    /// `pfn` was read from a link of a table made of `memory`, and is followed in the section that read it.
    #[inline(always)]
    pub(crate) unsafe fn follow<M: TableMemory>(memory: &M, pfn: Pfn) -> Self {
        Self(memory.at(pfn).cast())
    }

    /// Page `index` (not 0) of a chunk.
    pub(crate) fn in_chunk(chunk: NonNull<u8>, index: usize) -> Self {
        debug_assert!((1..CHUNK_PAGES).contains(&index));
        // SAFETY: inside the chunk.
        Self(unsafe { chunk.add(index << PAGE_SHIFT) }.cast())
    }

    /// The page `pages` after it: of a root that has more than one.
    #[inline(always)]
    pub(crate) fn beside(self, pages: usize) -> Self {
        Self(NonNull::new(self.0.as_ptr().wrapping_add(pages)).unwrap_or(self.0))
    }

    /// No page: not to be followed.
    pub(crate) const fn dangling() -> Self {
        Self(NonNull::dangling())
    }

    /// The frame that the hardware knows it by.
    pub(crate) fn pfn<M: TableMemory>(self, memory: &M) -> Pfn {
        memory.pfn(self.0.cast())
    }

    /// Its entries.
    ///
    /// # Safety
    /// The page stays allocated for `'a`: the holder is in a section, or owns the page.
    #[inline(always)]
    pub(crate) unsafe fn entries<'a>(self) -> &'a [Entry; ENTRIES] {
        // SAFETY: table pages are always valid as 512 atomics; allocated, says the caller.
        unsafe { &(*self.0.as_ptr()).0 }
    }

    /// Its entries as plain words.
    ///
    /// # Safety
    /// During `'a` the page is the caller's alone.
    pub(crate) unsafe fn words<'a>(self) -> &'a [u64; ENTRIES] {
        // SAFETY: an entry is one word; nobody else reads or writes it, says the caller.
        let words = unsafe { &*self.0.as_ptr().cast() };
        read_whole(words);
        words
    }

    /// Its note.
    ///
    /// # Safety
    /// As [`entries`](Self::entries).
    #[inline(always)]
    pub(crate) unsafe fn note<'a>(self) -> &'a Note {
        let page = self.0.cast::<u8>();
        let offset = page.as_ptr().addr() & (CHUNK_BYTES - 1);
        // SAFETY: both lie in one chunk, whose first page holds initialised notes.
        unsafe { page.sub(offset).cast::<Note>().add(offset >> PAGE_SHIFT).as_ref() }
    }

    /// Fills a page that nobody else can reach with one word.
    pub(crate) fn fill(self, word: Word) {
        // SAFETY: the caller owns the page (it is in no table yet).
        let entries = unsafe { self.entries() };
        for entry in entries {
            entry.fill(word);
        }
    }

    /// Fills a page that is in no table any more with [`inject::GIVEN_BACK`](crate::inject::GIVEN_BACK): an explorer sees
    /// who still looks at it.
    #[cfg(all(seeded, virtual_time))]
    pub(crate) fn give_back(self) {
        // SAFETY: the caller owns the page.
        let entries = unsafe { self.entries() };
        entries.iter().for_each(Entry::give_back);
    }
}

/// Makes the notes of a fresh chunk.
///
/// # Safety
/// `chunk` is a chunk that only the caller uses.
pub(crate) unsafe fn write_notes(chunk: NonNull<u8>) {
    for index in 0..CHUNK_PAGES {
        // SAFETY: inside the chunk's first page, which nobody else uses.
        unsafe { chunk.cast::<Note>().add(index).write(Note::default()) };
    }
}
