//! A chunk: its free pages, and how the host lends and regains it.
//!
//! ```text
//! notes page   [ head | note 1 | note 2 … note 63 ]
//!                free    page     page      page        of a chunk: contiguous; single pages: anywhere
//! ```
//! Both kinds of memory look the same above this module. A group of single pages may be smaller: it has as many pages
//! as were needed, or as the host had. Its notes are in a page of the global allocator, like the nodes of `page_notes`.

use super::memory::{CHUNK_PAGES, Node, Note, TableMemory, pages_layout};
use super::page_notes;
use crate::addr::{PAGE_SHIFT, PAGE_SIZE, Pfn};
use crate::callbacks::Finally;
use crate::fallible;
use crate::slots::bitmap::bits;
use alloc::alloc::dealloc;
use core::cell::Cell;
use core::ptr::NonNull;

/// A chunk, by its first note. Only the holder of the pool's lock may use the head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Chunk(NonNull<Note>);

// SAFETY: a pointer to memory that the pool owns.
unsafe impl Send for Chunk {}

/// The chunk's own note.
#[repr(C, align(64))]
pub(super) struct Head {
    /// Free pages, by number.
    pub(super) free: Cell<u64>,
    /// All pages. Never includes number 0, which holds the notes.
    all: u64,
    /// The pages of `all` that can form a root; none if roots have one page.
    pub(super) root: u64,
    /// The frame of the page with the notes, if the host lent it: so it is in a chunk, not in a group of single pages.
    notes: Option<Pfn>,
    /// The neighbours in the pool's list.
    pub(super) next: Cell<Option<Chunk>>,
    pub(super) previous: Cell<Option<Chunk>>,
}

const _: () = assert!(size_of::<Head>() == size_of::<Note>());

impl Head {
    /// Whether no page is in use.
    pub(super) fn is_whole(&self) -> bool {
        self.all & !self.free.get() == 0
    }

    /// Number of table pages.
    pub(super) fn pages(&self) -> u64 {
        u64::from(self.all.count_ones())
    }

    /// Number of pages that the host lent.
    pub(super) fn lent(&self) -> u64 {
        u64::from(self.notes.is_some()) + self.pages()
    }
}

impl Chunk {
    /// Returns the chunk of a page, and the page's number in it.
    ///
    /// # Safety
    /// The caller owns the page.
    pub(super) unsafe fn of(node: Node) -> (Self, u32) {
        // Not from `&Note`: a pointer made of a reference may leave the note no more than the reference may.
        // SAFETY: owned by the caller.
        let note = unsafe { node.note_at() };
        let offset = note.as_ptr().addr() & (PAGE_SIZE as usize - 1);
        let number = offset / size_of::<Note>();
        // SAFETY: the notes of a chunk fill one page.
        (Self(unsafe { note.sub(number) }), number as u32)
    }

    /// Returns the chunk's own note.
    ///
    /// # Safety
    /// The chunk has not been returned, and the caller has the pool's lock or is the only user of the chunk.
    pub(super) unsafe fn head<'a>(self) -> &'a Head {
        // SAFETY: written by `lend`.
        unsafe { self.0.cast().as_ref() }
    }

    /// Returns the page with this number.
    ///
    /// # Safety
    /// As [`head`](Self::head), and there is such a page.
    pub(super) unsafe fn node(self, number: u32) -> Node {
        // SAFETY: written by `lend`.
        unsafe { self.0.add(number as usize).as_ref() }.page
    }

    /// Borrows a chunk from `memory`, all of whose pages are free, and passes it to `add`. Returns whether there was one.
    /// If roots have more than one page, the chunk's last pages can form one. A group of single pages has a root only if
    /// it grows by one; otherwise it has the requested number of pages. If the host panics after some single pages, those
    /// form the chunk.
    pub(super) fn lend<M: TableMemory>(
        memory: &M,
        root_pages: usize,
        by: Growth,
        mut add: impl FnMut(Self),
    ) -> bool {
        let root_at = CHUNK_PAGES - root_pages;
        let root = if root_pages > 1 { block(root_at, root_pages) } else { 0 };
        if M::SINGLE_PAGES {
            return match by {
                Growth::Root => Self::group(memory, root, 1, add),
                Growth::Pages(pages) => Self::group(memory, 0, 1 + pages.min(CHUNK_PAGES - 1), add),
            };
        }
        let Some((chunk, pfn)) = memory.lend(CHUNK_PAGES) else { return false };
        for number in 1..CHUNK_PAGES {
            // SAFETY: fresh from the host, which lends it to this chunk alone.
            unsafe { write_note(chunk, number, chunk.add(number << PAGE_SHIFT), pfn + number as u64) };
        }
        // SAFETY: as above.
        add(unsafe { Self::with_head(chunk, Some(pfn), block(1, CHUNK_PAGES - 1), root) });
        true
    }

    /// Makes a group of single pages: those of `root`, if any, and then the numbers below `end`, as many as the host
    /// lends. Passes it to `add`, also if the host panics. Returns whether there was a page.
    fn group<M: TableMemory>(memory: &M, root: u64, end: usize, mut add: impl FnMut(Self)) -> bool {
        // SAFETY: the layout has a size that is not zero.
        let Some(notes) = (unsafe { fallible::alloc(pages_layout(1)) }) else { return false };
        let mut lent = Finally::with(0_u64, |&mut all: &mut u64| {
            if all == 0 {
                // SAFETY: allocated above with this layout.
                unsafe { dealloc(notes.as_ptr(), pages_layout(1)) };
            } else {
                // SAFETY: fresh from the allocator, for this chunk alone.
                add(unsafe { Self::with_head(notes, None, all, root & all) });
            }
        });
        let mut lend = |number: usize, pages: usize| {
            let Some((first, pfn)) = memory.lend(pages) else { return false };
            let noted = (0..pages).all(|page| {
                // SAFETY: inside the block, and inside the page of the notes, which only this chunk uses.
                let (pfn, number) = (pfn + page as u64, number + page);
                // SAFETY: as above.
                let page = unsafe { first.add(page << PAGE_SHIFT) };
                // SAFETY: as above.
                page_notes::insert(page, unsafe { write_note(notes, number, page, pfn) }.cast()).is_some()
            });
            if noted {
                *lent |= block(number, pages);
            } else {
                // SAFETY: lent above, and in no list yet.
                unsafe { free_block(memory, (first, pfn), pages) };
            }
            noted
        };
        // The root first: without it the other pages are useless.
        let begun = root == 0 || lend(root.trailing_zeros() as usize, root.count_ones() as usize);
        if begun {
            let _ = (1..end).all(|number| lend(number, 1));
        }
        *lent != 0
    }

    /// # Safety
    /// `chunk` begins with notes that only the caller uses.
    unsafe fn with_head(chunk: NonNull<u8>, notes: Option<Pfn>, all: u64, root: u64) -> Self {
        let head =
            Head { free: Cell::new(all), all, root, notes, next: Cell::new(None), previous: Cell::new(None) };
        // SAFETY: the caller guarantees it.
        unsafe { chunk.cast().write(head) };
        Self(chunk.cast())
    }

    /// Returns the chunk to the host. If the host panics, the single pages that it has not seen form a smaller chunk,
    /// which is passed to `keep`. The memory that the host was freeing is lost.
    ///
    /// # Safety
    /// `memory` lent it, it is returned once, and no thread can reach a page of it.
    pub(super) unsafe fn give_back<M: TableMemory>(self, memory: &M, mut keep: impl FnMut(Self)) {
        // SAFETY: the caller is its only user.
        let Head { all, root, notes, .. } = *unsafe { self.head() };
        if let Some(pfn) = notes {
            // SAFETY: the caller guarantees it.
            return unsafe { memory.take_back(self.0.cast(), pfn, CHUNK_PAGES) };
        }
        let notes = self.0.cast::<u8>();
        let mut left = Finally::with(all, |&mut left: &mut u64| {
            if left == 0 {
                // SAFETY: allocated in `group` with this layout.
                unsafe { dealloc(notes.as_ptr(), pages_layout(1)) };
            } else {
                // SAFETY: the caller is its only user.
                keep(unsafe { Self::with_head(notes, None, left, root & left) });
            }
        });
        let singles = bits(all & !root).map(|number| (number, 1));
        let root = Some((root.trailing_zeros(), root.count_ones() as usize)).filter(|_| root != 0);
        for (number, pages) in root.into_iter().chain(singles) {
            // SAFETY: written by `lend`.
            let (page, pfn) =
                unsafe { (self.node(number).page(), self.0.add(number as usize).as_ref().pfn()) };
            *left &= !block(number as usize, pages);
            // SAFETY: the head says that so many were lent together; the caller guarantees the rest.
            unsafe { free_block(memory, (page, pfn), pages) };
        }
    }
}

/// The reason for lending more memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Growth {
    /// The pool needs this number of pages.
    Pages(usize),
    /// The pool needs a root of several pages.
    Root,
}

/// Returns the bits of `pages` pages from page `number` on.
const fn block(number: usize, pages: usize) -> u64 {
    u64::MAX >> (64 - pages) << number
}

/// # Safety
/// `memory` lent these pages together, and no thread can reach them.
unsafe fn free_block<M: TableMemory>(memory: &M, (first, pfn): (NonNull<u8>, Pfn), pages: usize) {
    for page in 0..pages {
        // SAFETY: inside the block.
        page_notes::remove(unsafe { first.add(page << PAGE_SHIFT) });
    }
    // SAFETY: the caller guarantees it.
    unsafe { memory.take_back(first, pfn, pages) };
}

/// # Safety
/// `notes` is a page that only the caller uses, and `number` is a place in it.
unsafe fn write_note(notes: NonNull<u8>, number: usize, page: NonNull<u8>, pfn: Pfn) -> NonNull<Note> {
    let note = Note::new(Node::new(page), pfn);
    // SAFETY: inside the page.
    unsafe {
        let place = notes.cast::<Note>().add(number);
        place.write(note);
        place
    }
}
