//! Table pages that are in no table: the pool of a VM, and the small cache of each vCPU.
//!
//! A fault must not allocate inside its section, so each vCPU keeps a page for every level it might have to
//! link, topped up before it enters. Pages come back through a grace period ([`super::retire`]), never
//! directly. [`super::free`] says which page is next, and which chunks go back to the host.

use super::chunk::{Chunk, Growth};
use super::entry::Word;
use super::free::{Free, WHOLE};
use super::memory::{Node, NodeList, TableMemory};
use crate::addr::PAGE_SIZE;
use crate::sync::prim::{AtomicU64, Mutex, Relaxed};

/// Chunks that go back under one hold of the lock.
const BATCH: usize = 32;

/// No memory for table pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMemory;

errors! { NoMemory: Self => "the host has no more memory for table pages"; }

/// The table pages of one VM or address space. On lines of its own: what lies beside it is read by each fault, the root of the tables
/// for one, and threads that fetch pages write here.
#[derive(Debug)]
#[repr(align(128))]
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
            if self.take_free(cache, missing) == 0 && !reuse() {
                self.grow(memory, Growth::Pages(missing))?;
            }
        }
        Ok(())
    }

    /// The same from what is free, as far as that goes.
    pub(crate) fn top_up_free(&self, cache: &mut Cache, want: usize) {
        let left = usize::try_from(self.budget().saturating_sub(self.in_use())).unwrap_or(usize::MAX);
        let missing = want.saturating_sub(cache.list.len()).min(left);
        if missing > 0 {
            self.take_free(cache, missing);
        }
    }

    /// So many pages that are free, or as many as there are: how many.
    fn take_free(&self, cache: &mut Cache, many: usize) -> usize {
        let mut taken = self.free.lock().take(many);
        let len = taken.len();
        self.out.fetch_add(len as u64, Relaxed);
        // Turned around once more: they leave the cache as they came from the chunk.
        while let Some(node) = taken.pop() {
            cache.list.push(node);
        }
        len
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

    /// A chunk more. Single pages as many as are wanted, or half as many as there are already: so few are lent for small tables, and few
    /// pages of notes are needed for large ones. May sleep.
    fn grow<M: TableMemory>(&self, memory: &M, by: Growth) -> Result<(), Short> {
        let by = match by {
            Growth::Pages(pages) => Growth::Pages(pages.max(self.allocated() as usize / 2)),
            Growth::Root => Growth::Root,
        };
        let chunk = Chunk::lend(memory, self.root_pages, by).ok_or(Short::Host)?;
        self.free.lock().add(chunk);
        Ok(())
    }

    /// A root, to be [filled](Self::fill_root), for the pages in `cache`, which are as many.
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

    /// Fills all of a root with one word.
    pub(crate) fn fill_root(&self, root: Node, word: Word) {
        (0..self.root_pages).for_each(|page| root.beside(page).fill(word));
    }

    /// Takes back pages that no thread can reach any more.
    pub(crate) fn give_back(&self, list: NodeList) {
        self.out.fetch_sub(list.len() as u64, Relaxed);
        self.free.lock().put(list, 1);
    }

    /// Takes back roots of more than one page.
    pub(crate) fn give_back_roots(&self, roots: NodeList) {
        self.out.fetch_sub((roots.len() * self.root_pages) as u64, Relaxed);
        self.free.lock().put(roots, self.root_pages);
    }

    /// Gives whole chunks back to the host, if there are too many of them. May sleep.
    #[cold]
    pub(crate) fn trim<M: TableMemory>(&self, memory: &M) {
        let surplus = self.free.lock().surplus();
        self.give_chunks_back(memory, surplus.min(BATCH));
    }

    /// Gives all whole chunks back to the host. Returns how many bytes. May sleep.
    pub(crate) fn shrink<M: TableMemory>(&self, memory: &M) -> u64 {
        core::iter::repeat_with(|| self.give_chunks_back(memory, BATCH))
            .take_while(|&pages| pages > 0)
            .sum::<u64>()
            * PAGE_SIZE
    }

    /// Gives up to `many` whole chunks back. Returns how many pages.
    fn give_chunks_back<M: TableMemory>(&self, memory: &M, many: usize) -> u64 {
        let mut back = [None; BATCH];
        let mut pages = 0;
        if many > 0 {
            let mut free = self.free.lock();
            let before = free.lent;
            back[..many].fill_with(|| free.remove_first(WHOLE));
            pages = before - free.lent;
        }
        for chunk in back.into_iter().flatten() {
            // SAFETY: lent by this host once; it is in no list, and no page of it is out.
            unsafe { chunk.give_back(memory) };
        }
        pages
    }

    /// Pages in use, in any way.
    pub(crate) fn in_use(&self) -> u64 {
        self.out.load(Relaxed)
    }

    /// Pages that the host lent, those of notes included.
    pub(crate) fn lent(&self) -> u64 {
        self.free.lock().lent
    }

    /// Pages that are free.
    pub(crate) fn free(&self) -> u64 {
        self.free.lock().pages
    }

    /// Pages that were made of what the host lent.
    pub(crate) fn allocated(&self) -> u64 {
        self.free.lock().made
    }

    /// The free pages of the chunk of `node`, a page of this pool that stays allocated during the call.
    pub(crate) fn free_beside(&self, node: Node) -> u32 {
        // SAFETY: allocated, says the caller; the page of the notes is as long.
        let (chunk, _) = unsafe { Chunk::of(node) };
        let _free = self.free.lock();
        // SAFETY: locked.
        unsafe { chunk.head() }.free.get().count_ones()
    }

    /// Where the pages that are out lie in more chunks than they need: how many free pages a chunk may have that is one of the
    /// fullest, of which no more are needed. `None` where one in ten is too many at most.
    pub(crate) fn most_free_to_keep(&self) -> Option<u32> {
        self.free.lock().most_free_to_keep()
    }

    /// Gives every chunk back to the host.
    ///
    /// # Safety
    /// No page of this pool is reachable by any thread.
    pub(crate) unsafe fn release<M: TableMemory>(&mut self, memory: &M) {
        let free = self.free.get_mut();
        for list in 0..=WHOLE {
            while let Some(chunk) = free.remove_first(list) {
                // SAFETY: lent by this host once; unreachable, says the caller.
                unsafe { chunk.give_back(memory) };
            }
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
