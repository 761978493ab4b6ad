//! The free pages of a pool: their order of use, and the return of chunks to the host.
//!
//! Each chunk stores its free pages as bits of one word. The pool lists its chunks by the number of free pages:
//!
//! ```text
//! lists   0: none free   1: one free   …   62: 62 free   whole: all pages are free
//!                        ▲ pages come from the first list that has a chunk, hence from the fullest chunk
//! ```
//! In a chunk the lowest page goes first, so tables of neighbours are neighbours. No page ever moves. A nearly empty
//! chunk gives out no pages while a fuller one has any, so it becomes whole as its tables are freed.
//!
//! [`Vm::shrink`](crate::Vm::shrink) returns all whole chunks to the host. The pool also returns whole chunks by
//! itself, when pages return after a grace period and more than 2 K chunks are whole. It then keeps K: four, or an
//! eighth of the chunks in use if that is more. A VM that grows and shrinks by up to K chunks therefore causes no
//! lending and no return.

use super::chunk::Chunk;
use super::memory::{CHUNK_PAGES, Node, NodeList};
use crate::slots::bitmap::bits;

/// The chunks of a pool, by their free pages.
#[derive(Debug)]
pub(super) struct Free {
    /// The first chunk of each list: by number of free pages, and the whole chunks last.
    lists: [Option<Chunk>; WHOLE + 1],
    lens: [usize; WHOLE + 1],
    /// The lists that have a chunk, as bits, except list 0.
    with_pages: u64,
    /// Number of pages lent, including those of notes.
    pub(super) lent: u64,
    /// Number of table pages among them.
    pub(super) made: u64,
    /// Number of free pages.
    pub(super) pages: u64,
}

/// The list of chunks whose pages are all free.
pub(super) const WHOLE: usize = CHUNK_PAGES - 1;
/// Minimum number of whole chunks to keep.
pub(super) const KEPT: usize = if cfg!(shuttle) { 1 } else { 4 };
/// One more whole chunk is kept for each so many in use.
const KEPT_SHARE: usize = 8;

impl Default for Free {
    fn default() -> Self {
        Self { lists: [None; WHOLE + 1], lens: [0; WHOLE + 1], with_pages: 0, lent: 0, made: 0, pages: 0 }
    }
}

impl Free {
    /// The list for the chunk's current state.
    fn list_of(chunk: Chunk) -> usize {
        // SAFETY: a chunk of the locked pool.
        let head = unsafe { chunk.head() };
        if head.is_whole() { WHOLE } else { head.free.get().count_ones() as usize }
    }

    fn enlist(&mut self, chunk: Chunk) {
        let list = Self::list_of(chunk);
        let first = self.lists[list].replace(chunk);
        // SAFETY: chunks of the locked pool.
        unsafe {
            chunk.head().next.set(first);
            chunk.head().previous.set(None);
            if let Some(first) = first {
                first.head().previous.set(Some(chunk));
            }
        }
        self.with_pages |= 1 << list & !1;
        self.lens[list] += 1;
    }

    fn delist(&mut self, chunk: Chunk) {
        let list = Self::list_of(chunk);
        // SAFETY: chunks of the locked pool.
        unsafe {
            let (previous, next) = (chunk.head().previous.get(), chunk.head().next.get());
            if let Some(next) = next {
                next.head().previous.set(previous);
            }
            match previous {
                Some(previous) => previous.head().next.set(next),
                None => self.lists[list] = next,
            }
        }
        if self.lists[list].is_none() {
            self.with_pages &= !(1 << list);
        }
        self.lens[list] -= 1;
    }

    /// Adds a chunk.
    pub(super) fn add(&mut self, chunk: Chunk) {
        // SAFETY: only the caller reaches it.
        let head = unsafe { chunk.head() };
        self.lent += head.lent();
        self.made += head.pages();
        self.pages += u64::from(head.free.get().count_ones());
        self.enlist(chunk);
    }

    /// Removes the first chunk of this list.
    pub(super) fn remove_first(&mut self, list: usize) -> Option<Chunk> {
        let chunk = self.lists[list]?;
        self.delist(chunk);
        // SAFETY: no list has it now.
        let head = unsafe { chunk.head() };
        self.lent -= head.lent();
        self.made -= head.pages();
        self.pages -= u64::from(head.free.get().count_ones());
        Some(chunk)
    }

    /// Marks these pages of the chunk free, or in use.
    fn change(&mut self, chunk: Chunk, pages: u64, are_free: bool) {
        self.delist(chunk);
        // SAFETY: a chunk of the locked pool.
        let free = unsafe { &chunk.head().free };
        debug_assert!(free.get() & pages == if are_free { 0 } else { pages }, "a page is out once");
        free.set(free.get() ^ pages);
        let count = u64::from(pages.count_ones());
        self.pages = if are_free { self.pages + count } else { self.pages - count };
        self.enlist(chunk);
    }

    /// Takes up to `many` pages from the fullest chunks. The last one taken is the first in the returned list.
    pub(super) fn take(&mut self, many: usize) -> NodeList {
        let mut taken = NodeList::default();
        while taken.len() < many && self.with_pages != 0 {
            let Some(chunk) = self.lists[self.with_pages.trailing_zeros() as usize] else { break };
            // SAFETY: a chunk of the locked pool.
            let free = unsafe { chunk.head() }.free.get();
            let pages = bits(free).take(many - taken.len()).fold(0, |pages, number| pages | 1 << number);
            self.change(chunk, pages, false);
            for number in bits(pages) {
                // SAFETY: free until now.
                taken.push(unsafe { chunk.node(number) });
            }
        }
        taken
    }

    /// Takes the pages of a root, from the fullest of the chunks at the head of their lists.
    pub(super) fn take_root(&mut self) -> Option<Node> {
        let chunks = bits(self.with_pages).filter_map(|list| self.lists[list as usize]);
        let has_root = |chunk: &Chunk| {
            // SAFETY: a chunk of the locked pool.
            let head = unsafe { chunk.head() };
            head.root != 0 && head.free.get() & head.root == head.root
        };
        let chunk = { chunks }.find(has_root)?;
        // SAFETY: as above.
        let root = unsafe { chunk.head() }.root;
        self.change(chunk, root, false);
        // SAFETY: free until now.
        Some(unsafe { chunk.node(root.trailing_zeros()) })
    }

    /// Returns blocks of `pages` pages each to their chunks.
    pub(super) fn put(&mut self, mut blocks: NodeList, pages: usize) {
        while let Some(node) = blocks.pop() {
            // SAFETY: the list owned it.
            let (chunk, number) = unsafe { Chunk::of(node) };
            self.change(chunk, u64::MAX >> (64 - pages) << number, true);
        }
    }

    /// Number of chunks with a page in use.
    fn in_use(&self) -> usize {
        self.lens[..WHOLE].iter().sum()
    }

    /// Number of whole chunks above those to keep.
    pub(super) fn surplus(&self) -> usize {
        let (whole, kept) = (self.lens[WHOLE], KEPT.max(self.in_use() / KEPT_SHARE));
        if whole > 2 * kept { whole - kept } else { 0 }
    }

    /// See [`Pool::most_free_to_keep`](super::pool::Pool::most_free_to_keep).
    pub(super) fn most_free_to_keep(&self) -> Option<u32> {
        let out = self.made - self.pages;
        let needed = (out as usize).div_ceil(CHUNK_PAGES - 1);
        let mut kept = 0;
        let lists = self.lens[..WHOLE].iter().take_while(|&&len| {
            kept += len;
            kept <= needed
        });
        let most = lists.count().saturating_sub(1) as u32;
        // Groups of single pages may be small, so the free pages of chunks in use must make up a chunk and a tenth of
        // the used pages.
        let whole = |chunk: &Chunk| {
            // SAFETY: a chunk of the locked pool.
            unsafe { chunk.head() }.next.get()
        };
        let whole = core::iter::successors(self.lists[WHOLE], whole).map(|chunk| {
            // SAFETY: as above.
            unsafe { chunk.head() }.pages()
        });
        let free = self.pages - whole.sum::<u64>();
        (free >= (CHUNK_PAGES - 1) as u64 + out / 10 && self.in_use() > needed).then_some(most)
    }
}
