//! Table pages that are in no table: the pool of a VM, and the small cache of each vCPU.
//!
//! A fault must not allocate inside its section. Each vCPU therefore keeps one page for every level that it might link,
//! and fills its cache before it enters. Pages return only after a grace period ([`super::retire`]). [`super::free_pages`]
//! decides which page is next, and which chunks return to the host.

use super::chunk::{Chunk, Growth};
use super::entry::Word;
use super::free_pages::{Free, WHOLE};
use super::memory::{Node, NodeList, TableMemory};
use crate::addr::PAGE_SIZE;
use crate::callbacks::{Caught, Finally};
use crate::fallible::NoMemory;
use crate::inject::{Point, strikes};
use crate::sync::prim::{AtomicU64, Mutex, Relaxed};

/// Maximum number of chunks returned under one hold of the lock.
const BATCH: usize = 32;

/// The table pages of one VM or address space. Alone on its cache lines: threads that fetch pages write here, and each
/// fault reads its neighbours, for example the root.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Pool {
    free: Mutex<Free>,
    /// Number of pages that are not free: linked, in a cache, in a debt, or waiting for a grace period.
    out: AtomicU64,
    /// Maximum of `out`, in pages.
    budget: AtomicU64,
    /// Number of pages of a root.
    root_pages: usize,
}

/// Why a page is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageShortage {
    /// The budget is used up.
    Budget,
    /// The host has no more memory.
    Host,
}

impl From<PageShortage> for NoMemory {
    fn from(_: PageShortage) -> Self {
        Self
    }
}

/// One thread's spare pages: one for each level that a fault may have to link.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    list: NodeList,
}

/// Spare pages of one operation. The unused ones return when this is dropped, also while a panic of the host unwinds.
#[derive(Debug)]
pub(crate) struct Scratch<'p> {
    pool: &'p Pool,
    cache: Cache,
}

impl core::ops::Deref for Scratch<'_> {
    type Target = Cache;
    fn deref(&self) -> &Cache {
        &self.cache
    }
}

impl core::ops::DerefMut for Scratch<'_> {
    fn deref_mut(&mut self) -> &mut Cache {
        &mut self.cache
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        if self.cache.len() > 0 {
            self.pool.give_back(self.cache.drain());
        }
    }
}

/// A root that is in no space yet. It returns when this is dropped.
pub(crate) struct FreshRoot<'p> {
    pool: &'p Pool,
    node: Option<Node>,
}

impl FreshRoot<'_> {
    /// Fills all of its entries with one word, and hands it over.
    pub(crate) fn filled(mut self, word: Word) -> Option<Node> {
        let node = self.node.take();
        node.inspect(|&node| self.pool.fill_root(node, word))
    }
}

impl Drop for FreshRoot<'_> {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            self.pool.give_root_back(node);
        }
    }
}

impl Pool {
    /// A pool for tables whose root has `root_pages` pages.
    pub(crate) fn new(root_pages: usize) -> Self {
        Self { free: Mutex::default(), out: AtomicU64::new(0), budget: AtomicU64::new(u64::MAX), root_pages }
    }

    /// Fills `cache` up to `want` pages. If none is free, `reuse` may free one; otherwise the host lends more, which
    /// may sleep.
    pub(crate) fn top_up<M: TableMemory>(
        &self,
        memory: &M,
        cache: &mut Cache,
        want: usize,
        reuse: impl Fn() -> bool,
    ) -> Result<(), PageShortage> {
        while cache.list.len() < want {
            // Threads that pass this check at the same time may exceed the budget, each by the pages that it takes.
            let left = self.budget().saturating_sub(self.in_use());
            if left == 0 {
                return Err(PageShortage::Budget);
            }
            if strikes(Point::Alloc) {
                return Err(PageShortage::Host);
            }
            let missing = (want - cache.list.len()).min(usize::try_from(left).unwrap_or(usize::MAX));
            if self.take_free(cache, missing) == 0 && !reuse() {
                self.grow(memory, Growth::Pages(missing))?;
            }
        }
        Ok(())
    }

    /// Fills `cache` up to `want` pages from free pages only, as far as they last.
    pub(crate) fn top_up_free(&self, cache: &mut Cache, want: usize) {
        let left = usize::try_from(self.budget().saturating_sub(self.in_use())).unwrap_or(usize::MAX);
        let missing = want.saturating_sub(cache.list.len()).min(left);
        if missing > 0 {
            self.take_free(cache, missing);
        }
    }

    /// Moves up to `many` free pages to `cache`. Returns their number.
    fn take_free(&self, cache: &mut Cache, many: usize) -> usize {
        let mut taken = self.free.lock().take(many);
        let len = taken.len();
        self.out.fetch_add(len as u64, Relaxed);
        // Reversed once more, so that pages leave the cache in their order in the chunk.
        while let Some(node) = taken.pop() {
            cache.list.push(node);
        }
        len
    }

    /// Maximum number of pages in use.
    pub(crate) fn budget(&self) -> u64 {
        self.budget.load(Relaxed)
    }

    /// Whether the budget is below the memory of any machine.
    pub(crate) fn has_budget(&self) -> bool {
        self.budget() < u64::MAX / PAGE_SIZE
    }

    /// Sets the budget, in bytes.
    pub(crate) fn set_budget(&self, bytes: u64) {
        self.budget.store(bytes / PAGE_SIZE, Relaxed);
    }

    /// Adds a chunk. Of single pages it adds as many as requested, but at least half as many as exist. Small tables
    /// then need few pages, and large tables few pages of notes. May sleep.
    fn grow<M: TableMemory>(&self, memory: &M, by: Growth) -> Result<(), PageShortage> {
        let by = match by {
            Growth::Pages(pages) => Growth::Pages(pages.max(self.allocated() as usize / 2)),
            Growth::Root => Growth::Root,
        };
        let lent = Chunk::lend(memory, self.root_pages, by, |chunk| self.free.lock().add(chunk));
        if lent { Ok(()) } else { Err(PageShortage::Host) }
    }

    /// Exchanges the pages in `cache`, as many as a root has, for a root, which the caller must
    /// [fill](Self::fill_root).
    pub(crate) fn root<M: TableMemory>(&self, memory: &M, cache: &mut Cache) -> Result<Node, NoMemory> {
        if self.root_pages == 1 {
            return cache.take().ok_or(NoMemory);
        }
        loop {
            let mut free = self.free.lock();
            if let Some(root) = free.take_root() {
                free.put(cache.drain(), 1);
                return Ok(root);
            }
            drop(free);
            self.grow(memory, Growth::Root)?;
        }
    }

    /// Spare pages for one operation: none yet.
    pub(crate) fn scratch(&self) -> Scratch<'_> {
        Scratch { pool: self, cache: Cache::default() }
    }

    /// Like [`root`](Self::root), as a guard.
    pub(crate) fn fresh_root<M: TableMemory>(
        &self,
        memory: &M,
        cache: &mut Cache,
    ) -> Result<FreshRoot<'_>, NoMemory> {
        let node = Some(self.root(memory, cache)?);
        Ok(FreshRoot { pool: self, node })
    }

    /// Fills all entries of a root with one word.
    pub(crate) fn fill_root(&self, root: Node, word: Word) {
        (0..self.root_pages).for_each(|page| root.beside(page).fill(word));
    }

    /// Takes back pages that no thread can reach.
    pub(crate) fn give_back(&self, list: NodeList) {
        self.out.fetch_sub(list.len() as u64, Relaxed);
        self.free.lock().put(list, 1);
    }

    /// Takes back a root.
    pub(crate) fn give_root_back(&self, root: Node) {
        let mut roots = NodeList::default();
        roots.push(root);
        if self.root_pages == 1 { self.give_back(roots) } else { self.give_back_roots(roots) }
    }

    /// Takes back roots of several pages.
    pub(crate) fn give_back_roots(&self, roots: NodeList) {
        self.out.fetch_sub((roots.len() * self.root_pages) as u64, Relaxed);
        self.free.lock().put(roots, self.root_pages);
    }

    /// Returns whole chunks to the host, if the pool has too many. May sleep.
    #[cold]
    pub(crate) fn trim<M: TableMemory>(&self, memory: &M) {
        let surplus = self.free.lock().surplus();
        self.give_chunks_back(memory, surplus.min(BATCH));
    }

    /// Returns all whole chunks to the host, and the number of their bytes. May sleep.
    pub(crate) fn shrink<M: TableMemory>(&self, memory: &M) -> u64 {
        core::iter::repeat_with(|| self.give_chunks_back(memory, BATCH))
            .take_while(|&pages| pages > 0)
            .sum::<u64>()
            * PAGE_SIZE
    }

    /// Returns up to `many` whole chunks to the host, and the number of their pages.
    fn give_chunks_back<M: TableMemory>(&self, memory: &M, many: usize) -> u64 {
        let mut back = [None; BATCH];
        let mut pages = 0;
        if many > 0 {
            let mut free = self.free.lock();
            let before = free.lent;
            back[..many].fill_with(|| free.remove_first(WHOLE));
            pages = before - free.lent;
        }
        // If the host panics, the pool keeps the chunks that the host has not seen.
        let mut left = Finally::with(back, |back: &mut [Option<Chunk>; BATCH]| {
            for chunk in back.iter_mut().filter_map(Option::take) {
                self.free.lock().add(chunk);
            }
        });
        for chunk in left.iter_mut() {
            if let Some(chunk) = chunk.take() {
                // SAFETY: this host lent it once; it is in no list, and no page of it is in use.
                unsafe { chunk.give_back(memory, |rest| self.free.lock().add(rest)) };
            }
        }
        pages
    }

    /// Number of pages in use.
    pub(crate) fn in_use(&self) -> u64 {
        self.out.load(Relaxed)
    }

    /// Number of pages that the host lent, including those of notes.
    pub(crate) fn lent(&self) -> u64 {
        self.free.lock().lent
    }

    /// Number of free pages.
    pub(crate) fn free(&self) -> u64 {
        self.free.lock().pages
    }

    /// Number of table pages in the memory that the host lent.
    pub(crate) fn allocated(&self) -> u64 {
        self.free.lock().made
    }

    /// Number of free pages in the chunk of `node`, a page of this pool that stays allocated during the call.
    pub(crate) fn free_beside(&self, node: Node) -> u32 {
        // SAFETY: allocated by the caller's contract, and so is the page of the notes.
        let (chunk, _) = unsafe { Chunk::of(node) };
        let _free = self.free.lock();
        // SAFETY: the pool is locked.
        unsafe { chunk.head() }.free.get().count_ones()
    }

    /// The greatest number of free pages of a chunk among the fullest chunks that suffice for all used pages. `None`
    /// unless the used pages lie in too many chunks: more than a chunk, and a tenth of the used pages, must be free in
    /// chunks in use.
    pub(crate) fn most_free_to_keep(&self) -> Option<u32> {
        self.free.lock().most_free_to_keep()
    }

    /// Returns every chunk to the host.
    ///
    /// # Safety
    /// No thread can reach any page of this pool.
    pub(crate) unsafe fn release<M: TableMemory>(&mut self, memory: &M) {
        let (panics, free) = (Caught::new(), self.free.get_mut());
        for list in 0..=WHOLE {
            while let Some(mut chunk) = free.remove_first(list) {
                loop {
                    let mut rest = None;
                    // SAFETY: this host lent it once; unreachable by the caller's contract.
                    panics.call(|| unsafe { chunk.give_back(memory, |left| rest = Some(left)) });
                    // The pages of a group that the host has not seen when it panicked.
                    match rest {
                        Some(rest) => chunk = rest,
                        None => break,
                    }
                }
            }
        }
        panics.end();
    }
}

impl Cache {
    /// Takes a page to fill and link. Returns `None` if [`Pool::top_up`] was not called before. Clears the slot hint
    /// beside the page, because it may belong to another address space.
    pub(crate) fn take(&mut self) -> Option<Node> {
        let node = self.list.pop()?;
        // SAFETY: the list owned the page, and now the caller does.
        unsafe { node.note() }.hint.forget();
        Some(node)
    }

    /// Returns a page that lost the race to be linked.
    pub(crate) fn put_back(&mut self, node: Node) {
        self.list.push(node);
    }

    /// Removes all pages, for the pool.
    pub(crate) fn drain(&mut self) -> NodeList {
        core::mem::take(&mut self.list)
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
