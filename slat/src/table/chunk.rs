//! A chunk in the pool's hands: which of its pages are free, and how it is lent and given back.
//!
//! ```text
//! notes page   [ head | note 1 | note 2 … note 63 ]
//!                free    page     page      page        of a chunk: right behind; single pages: anywhere
//! ```
//! Both kinds of memory look the same from here on. A group of single pages may have fewer of them: it has those that were wanted, or
//! that the host had. Its notes are in a page of the global allocator's, as the nodes of `single` are.

use super::memory::{CHUNK_PAGES, Node, Note, TableMemory, pages_layout};
use super::single;
use crate::addr::{PAGE_SHIFT, PAGE_SIZE, Pfn};
use crate::slots::bitmap::bits;
use alloc::alloc::{alloc, dealloc};
use core::cell::Cell;
use core::ptr::NonNull;

/// A chunk, by its first note. Who may use the head: the holder of the pool's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Chunk(NonNull<Note>);

// SAFETY: a pointer to memory that the pool owns.
unsafe impl Send for Chunk {}

/// The chunk's own note.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Head {
    /// Free pages, by number.
    pub(super) free: Cell<u64>,
    /// Pages that there are: not number 0, which holds the notes.
    all: u64,
    /// Those of `all` that can be a root together; none where roots have one page.
    pub(super) root: u64,
    /// Pages that the host lent for the notes: one of a chunk, none of single pages.
    notes: u64,
    /// Its neighbours in the list of the pool.
    pub(super) next: Cell<Option<Chunk>>,
    pub(super) previous: Cell<Option<Chunk>>,
}

const _: () = assert!(size_of::<Head>() == size_of::<Note>());

impl Head {
    /// Whether no page is in use.
    pub(super) fn is_whole(&self) -> bool {
        let out = self.all & !self.free.get();
        out == 0 || seeded!(ChunkNotWhole) && out.is_power_of_two()
    }

    /// Pages of tables.
    pub(super) fn pages(&self) -> u64 {
        u64::from(self.all.count_ones())
    }

    /// Pages that the host lent.
    pub(super) fn lent(&self) -> u64 {
        self.notes + self.pages()
    }
}

impl Chunk {
    /// The chunk of a page, and the page's number in it.
    ///
    /// # Safety
    /// The caller owns the page.
    pub(super) unsafe fn of(node: Node) -> (Self, u32) {
        // SAFETY: owned by the caller.
        let note = NonNull::from(unsafe { node.note() });
        let offset = note.as_ptr().addr() & (PAGE_SIZE as usize - 1);
        let number = offset / size_of::<Note>();
        // SAFETY: the notes of a chunk fill one page.
        (Self(unsafe { note.sub(number) }), number as u32)
    }

    /// Its own note.
    ///
    /// # Safety
    /// The chunk has not been given back, and the caller has the pool's lock or is alone with the chunk.
    pub(super) unsafe fn head<'a>(self) -> &'a Head {
        // SAFETY: written by `lend`.
        unsafe { self.0.cast().as_ref() }
    }

    /// Its page of this number.
    ///
    /// # Safety
    /// As [`head`](Self::head), and there is such a page.
    pub(super) unsafe fn node(self, number: u32) -> Node {
        // SAFETY: written by `lend`.
        unsafe { self.0.add(number as usize).as_ref() }.page
    }

    /// A chunk of `memory`, all of whose pages are free. Where roots have more than one page, its last pages can be a root;
    /// of single pages only if it grows by a root; else by as many pages as it is told.
    pub(super) fn lend<M: TableMemory>(memory: &M, root_pages: usize, by: Growth) -> Option<Self> {
        let root_at = CHUNK_PAGES - root_pages;
        let root = if root_pages > 1 { block(root_at, root_pages) } else { 0 };
        if M::SINGLE_PAGES {
            return match by {
                Growth::Root => Self::group(memory, root, 1),
                Growth::Pages(pages) => Self::group(memory, 0, 1 + pages.min(CHUNK_PAGES - 1)),
            };
        }
        let chunk = memory.alloc_chunk()?;
        for number in 1..CHUNK_PAGES {
            // SAFETY: fresh from the host, which lends it to this chunk alone.
            unsafe { write_note(chunk, number, chunk.add(number << PAGE_SHIFT), NOT_KEPT) };
        }
        // SAFETY: as above.
        Some(unsafe { Self::with_head(chunk, 1, block(1, CHUNK_PAGES - 1), root) })
    }

    /// A group of single pages: those of `root`, if any, and those of numbers below `end`, as many as there are.
    fn group<M: TableMemory>(memory: &M, root: u64, end: usize) -> Option<Self> {
        if injected!(Alloc) {
            return None;
        }
        // SAFETY: the layout has a size that is not zero.
        let notes = NonNull::new(unsafe { alloc(pages_layout(1)) })?;
        let add = |number, pages| {
            let (first, pfn) = memory.alloc_frames(pages)?;
            let added = (0..pages).all(|page| {
                // SAFETY: inside the block; and inside the page of the notes, which this chunk alone uses.
                let (pfn, number) = (pfn + page as u64, number + page);
                // SAFETY: as above.
                let page = unsafe { first.add(page << PAGE_SHIFT) };
                // SAFETY: as above.
                single::insert(page, unsafe { write_note(notes, number, page, pfn) }.cast()).is_some()
            });
            if added {
                return Some(block(number, pages));
            }
            // SAFETY: lent above, and in no list yet.
            unsafe { free_block(memory, (first, pfn), pages) };
            None
        };
        // The root first: without it the others are of no use.
        let begun =
            if root == 0 { Some(0) } else { add(root.trailing_zeros() as usize, root.count_ones() as usize) };
        let all = begun.map_or(0, |begun| {
            (1..end).map_while(|number| add(number, 1)).fold(begun, |all, page| all | page)
        });
        if all == 0 {
            // SAFETY: allocated above with this layout.
            unsafe { dealloc(notes.as_ptr(), pages_layout(1)) };
            return None;
        }
        // SAFETY: fresh from the allocator, for this chunk alone.
        Some(unsafe { Self::with_head(notes, 0, all, root) })
    }

    /// # Safety
    /// `chunk` begins with notes, which the caller alone uses.
    unsafe fn with_head(chunk: NonNull<u8>, notes: u64, all: u64, root: u64) -> Self {
        let head =
            Head { free: Cell::new(all), all, root, notes, next: Cell::new(None), previous: Cell::new(None) };
        // SAFETY: the caller's word.
        unsafe { chunk.cast().write(head) };
        Self(chunk.cast())
    }

    /// Gives it back to the host.
    ///
    /// # Safety
    /// It was lent by `memory`, once, and no page of it is reachable by any thread.
    pub(super) unsafe fn give_back<M: TableMemory>(self, memory: &M) {
        if !M::SINGLE_PAGES {
            // SAFETY: the caller's word.
            return unsafe { memory.free_chunk(self.0.cast()) };
        }
        // SAFETY: the caller is alone with it.
        let Head { all, root, .. } = *unsafe { self.head() };
        let singles = bits(all & !root).map(|number| (number, 1));
        let root = Some((root.trailing_zeros(), root.count_ones() as usize)).filter(|_| root != 0);
        for (number, pages) in root.into_iter().chain(singles) {
            // SAFETY: written by `lend`.
            let (page, pfn) =
                unsafe { (self.node(number).page(), self.0.add(number as usize).as_ref().pfn()) };
            // SAFETY: lent as so many, says the head; the caller's word.
            unsafe { free_block(memory, (page, pfn), pages) };
        }
        // SAFETY: allocated in `group` with this layout.
        unsafe { dealloc(self.0.as_ptr().cast(), pages_layout(1)) };
    }
}

/// What a pool needs more memory for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Growth {
    /// So many pages.
    Pages(usize),
    /// A root of several pages.
    Root,
}

/// Of a chunk's pages the memory tells the frames.
const NOT_KEPT: Pfn = Pfn(0);

/// The bits of `pages` pages from page `number` on.
const fn block(number: usize, pages: usize) -> u64 {
    u64::MAX >> (64 - pages) << number
}

/// # Safety
/// These pages were lent by `memory` with each other, and no thread reaches them.
unsafe fn free_block<M: TableMemory>(memory: &M, (first, pfn): (NonNull<u8>, Pfn), pages: usize) {
    for page in 0..pages {
        // SAFETY: inside the block.
        single::remove(unsafe { first.add(page << PAGE_SHIFT) });
    }
    // SAFETY: the caller's word.
    unsafe { memory.free_frames(first, pfn, pages) };
}

/// # Safety
/// `notes` is a page that only the caller uses, and has a place of this number.
unsafe fn write_note(notes: NonNull<u8>, number: usize, page: NonNull<u8>, pfn: Pfn) -> NonNull<Note> {
    let note = Note::new(Node::new(page), pfn);
    // SAFETY: inside the page.
    unsafe {
        let place = notes.cast::<Note>().add(number);
        place.write(note);
        place
    }
}
