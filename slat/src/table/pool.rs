//! Table pages that are in no table: the pool of a VM, and the small cache of each vCPU.
//!
//! A fault must not allocate inside its section, so each vCPU keeps a page for every level it might have to
//! link, topped up before it enters. Pages come back through a grace period ([`super::retire`]), never
//! directly. Chunks go back to the host when the pool is dropped.

use super::entry::Word;
use super::memory::{CHUNK_PAGES, Node, TableMemory, write_notes};
use super::retire::NodeList;
use crate::addr::PAGE_SIZE;
use crate::sync::prim::{AtomicU64, Mutex, Relaxed};
use alloc::vec::Vec;
use core::ptr::NonNull;

/// No memory for table pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMemory;

impl core::fmt::Display for NoMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the host has no more memory for table pages")
    }
}

impl core::error::Error for NoMemory {}

/// The table pages of one VM or address space.
#[derive(Debug)]
pub(crate) struct Pool {
    free: Mutex<Free>,
    /// Pages that are not free: linked, in a cache, in a debt or waiting for a grace period.
    out: AtomicU64,
    /// No more of them are given out.
    budget: AtomicU64,
    /// Pages of a root.
    root_pages: usize,
}

/// Why there is no page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Short {
    /// The budget is used up.
    Budget,
    /// The host has no more.
    Host,
}

impl From<Short> for NoMemory {
    fn from(_: Short) -> Self {
        Self
    }
}

#[derive(Debug, Default)]
struct Free {
    list: NodeList,
    /// Roots of more than one page, by their first.
    roots: NodeList,
    chunks: Vec<Chunk>,
}

#[derive(Debug)]
struct Chunk(NonNull<u8>);

// SAFETY: a chunk is memory that the pool owns.
unsafe impl Send for Chunk {}

/// The pages that one thread keeps at hand: one for each level that a fault may have to link.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    list: NodeList,
}

impl Pool {
    /// For tables whose root has `root_pages` pages.
    pub(crate) fn new(root_pages: usize) -> Self {
        Self { free: Mutex::default(), out: AtomicU64::new(0), budget: AtomicU64::new(u64::MAX), root_pages }
    }

    /// Fills `cache` up to `want` pages. Where none is free, `reuse` may free one; else the host is asked, which may
    /// sleep.
    pub(crate) fn top_up<M: TableMemory>(
        &self,
        memory: &M,
        cache: &mut Cache,
        want: usize,
        reuse: impl Fn() -> bool,
    ) -> Result<(), Short> {
        while cache.list.len() < want {
            // Threads that pass here at once may go beyond it, by what each needs.
            let left = self.budget().saturating_sub(self.in_use());
            if left == 0 {
                return Err(Short::Budget);
            }
            if injected!(Alloc) {
                return Err(Short::Host);
            }
            let missing = (want - cache.list.len()).min(usize::try_from(left).unwrap_or(usize::MAX));
            let mut taken = NodeList::default();
            {
                let mut free = self.free.lock();
                while taken.len() < missing
                    && let Some(node) = free.list.pop()
                {
                    taken.push(node);
                }
            }
            if taken.len() == 0 && !reuse() {
                self.grow(memory)?;
            }
            self.out.fetch_add(taken.len() as u64, Relaxed);
            // Turned around once more: they leave the cache as they came from the chunk.
            while let Some(node) = taken.pop() {
                cache.list.push(node);
            }
        }
        Ok(())
    }

    /// The same from what is free, as far as that goes.
    pub(crate) fn top_up_free(&self, cache: &mut Cache, want: usize) {
        let left = usize::try_from(self.budget().saturating_sub(self.in_use())).unwrap_or(usize::MAX);
        let missing = want.saturating_sub(cache.list.len()).min(left);
        if missing == 0 {
            return;
        }
        let (mut free, before) = (self.free.lock(), cache.list.len());
        while cache.list.len() - before < missing
            && let Some(node) = free.list.pop()
        {
            cache.list.push(node);
        }
        self.out.fetch_add((cache.list.len() - before) as u64, Relaxed);
    }

    /// Pages that may be in use.
    pub(crate) fn budget(&self) -> u64 {
        self.budget.load(Relaxed)
    }

    /// Whether that is less than any machine has.
    pub(crate) fn has_budget(&self) -> bool {
        self.budget() < u64::MAX / PAGE_SIZE
    }

    /// In bytes.
    pub(crate) fn set_budget(&self, bytes: u64) {
        self.budget.store(bytes / PAGE_SIZE, Relaxed);
    }

    /// A chunk more. All its pages are free; those of one root stay together, if none is free.
    fn grow<M: TableMemory>(&self, memory: &M) -> Result<(), Short> {
        let chunk = memory.alloc_chunk().ok_or(Short::Host)?;
        // SAFETY: fresh from the host, nobody else's.
        unsafe { write_notes(chunk) };
        let mut free = self.free.lock();
        let mut root = 0..0;
        if self.root_pages > 1 && free.roots.len() == 0 {
            // The chunk is aligned to more.
            root = self.root_pages..2 * self.root_pages;
            free.roots.push(Node::in_chunk(chunk, root.start));
        }
        // Highest first, so that pages are handed out in address order: tables of neighbours become neighbours.
        for index in (1..CHUNK_PAGES).rev().filter(|index| !root.contains(index)) {
            free.list.push(Node::in_chunk(chunk, index));
        }
        free.chunks.push(Chunk(chunk));
        Ok(())
    }

    /// A root, to be [filled](Self::fill_root), for the pages in `cache`, which are as many.
    pub(crate) fn root<M: TableMemory>(&self, memory: &M, cache: &mut Cache) -> Result<Node, NoMemory> {
        if self.root_pages == 1 {
            return cache.take().ok_or(NoMemory);
        }
        loop {
            let mut free = self.free.lock();
            if let Some(root) = free.roots.pop() {
                free.list.append(&mut cache.list);
                return Ok(root);
            }
            drop(free);
            self.grow(memory)?;
        }
    }

    /// Fills all of a root with one word.
    pub(crate) fn fill_root(&self, root: Node, word: Word) {
        (0..self.root_pages).for_each(|page| root.beside(page).fill(word));
    }

    /// Takes back pages that nobody can reach any more.
    pub(crate) fn give_back(&self, mut list: NodeList) {
        self.out.fetch_sub(list.len() as u64, Relaxed);
        self.free.lock().list.append(&mut list);
    }

    /// Takes back roots of more than one page.
    pub(crate) fn give_back_roots(&self, mut roots: NodeList) {
        self.out.fetch_sub((roots.len() * self.root_pages) as u64, Relaxed);
        self.free.lock().roots.append(&mut roots);
    }

    /// Pages in use, in any way.
    pub(crate) fn in_use(&self) -> u64 {
        self.out.load(Relaxed)
    }

    /// Pages that the host lent, notes included.
    pub(crate) fn lent(&self) -> u64 {
        (self.free.lock().chunks.len() * CHUNK_PAGES) as u64
    }

    /// Pages that are free.
    pub(crate) fn free(&self) -> u64 {
        let free = self.free.lock();
        (free.list.len() + free.roots.len() * self.root_pages) as u64
    }

    /// Pages that were made of what the host lent.
    pub(crate) fn allocated(&self) -> u64 {
        (self.free.lock().chunks.len() * (CHUNK_PAGES - 1)) as u64
    }

    /// Gives every chunk back to the host.
    ///
    /// # Safety
    /// No page of this pool is reachable by anyone.
    pub(crate) unsafe fn release<M: TableMemory>(&mut self, memory: &M) {
        // The list points into the chunks, and goes with them.
        for chunk in core::mem::take(&mut *self.free.lock()).chunks {
            // SAFETY: lent by this host once; unreachable, says the caller.
            unsafe { memory.free_chunk(chunk.0) };
        }
    }
}

impl Cache {
    /// A page, to be filled and linked. `None` means that [`Pool::top_up`] was not called before. The slot that is remembered
    /// beside it is forgotten: it was one of the address space that the page served before.
    pub(crate) fn take(&mut self) -> Option<Node> {
        let node = self.list.pop()?;
        // SAFETY: the page was the list's, and is the caller's alone.
        unsafe { node.note() }.hint.forget();
        Some(node)
    }

    /// Puts back a page that lost the race to be linked.
    pub(crate) fn put_back(&mut self, node: Node) {
        self.list.push(node);
    }

    /// All its pages, for the pool.
    pub(crate) fn drain(&mut self) -> NodeList {
        core::mem::take(&mut self.list)
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }
}
