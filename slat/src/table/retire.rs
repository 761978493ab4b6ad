//! How a table page dies: steps that are types, each consuming the one before (the TDP MMU series).
//!
//! ```text
//!  linked ──unhook──▶ Unlinked ──shootdown──▶ Flushed ──grace period──▶ dead ──taken apart──▶ pool
//!                     no walk finds it        no hardware walker        no software walk
//!                     from the root           holds it in a paging-     still stands in it
//!                                             structure cache
//! ```
//! There is no other way from a linked page to the pool: an [`Unlinked`] lives in a
//! [`FlushDebt`](crate::tlb::FlushDebt), settling the debt yields a [`Flushed`], and only [`Grace`] takes one.
//!
//! A whole subtree dies by its top: unhooking 1 GiB is one CAS, whatever hangs there. Its entries are *not* overwritten
//! (the TDP MMU series fills them with special entries, KVM freezes each). A walk that is already inside the dead table may
//! continue. Its writes have no effect on the guest: a leaf installed there reaches no TLB that outlives the shootdown, and the
//! host changes nothing before it; a number written into a hole there is not missed in the live
//! table, which gets a newer one before the invalidation ends that unhooked ([`crate::notify::active`]).
//! So the dead are counted and taken apart by plain loads when no other thread can reach them: many times
//! faster than an exchange for each entry, and at leisure, a page at a time. (`model/` checks all of this.)

use super::entry::{Entry, Word};
use super::format::Format;
use super::memory::{Node, NodeList, TableMemory};
use super::pool::Pool;
use crate::addr::Level;
use crate::sync::prim::{AtomicBool, AtomicU64, Mutex, Patience, Relaxed};
use crate::sync::readside::ReadSide;
use core::marker::PhantomData;

/// Subtrees out of every table, which a hardware walker may still hold.
#[derive(Debug, Default)]
pub(crate) struct Unlinked(NodeList);

/// Subtrees that only a software walk that began earlier may still hold.
#[derive(Debug, Default)]
#[must_use = "flushed pages go to the grace queue"]
pub(crate) struct Flushed(NodeList);

impl Unlinked {
    /// Adds the subtree below and with `top`, a table of `level`.
    #[cold]
    pub(crate) fn add(&mut self, top: Node, level: Level) {
        // SAFETY: unhooked by the caller, whose it is now.
        unsafe { top.note() }.level.set(level);
        self.0.push(top);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// The hardware has let go of every page in it: to be called by the shootdown, after its last answer.
    pub(crate) fn flushed(self) -> Flushed {
        Flushed(self.0)
    }
}

/// What a thread has taken from the queue, to wait for a grace period with.
#[derive(Debug)]
#[must_use = "it is to be buried"]
pub(crate) struct OutOfQueue {
    flushed: Flushed,
    round: usize,
}

/// No other thread can reach it.
#[derive(Debug, Default)]
struct Dead {
    /// Tops of subtrees, to be taken apart.
    tops: NodeList,
    /// Threads that are taking some apart, whose children will be among the tops.
    busy: usize,
    /// Threads that wait for a grace period with some in hand, by the parity of the round in which they began.
    waiting: [usize; 2],
    round: usize,
}

/// Is told what becomes of unhooked tables, where nothing is left to be done about it.
pub(crate) trait TableEvents {
    /// No thread is in a table any more that was unhooked before.
    fn grace_period_ended(&self);
    /// Tables were taken apart, which held so many leaves of `level`.
    fn tables_freed(&self, level: Level, leaves: u64);
}

/// What waits for a grace period, and what has had one.
#[derive(Debug, Default)]
pub(crate) struct Grace {
    flushed: Mutex<NodeList>,
    dead: Mutex<Dead>,
    /// Leaves found in the dead, by level.
    leaves: [AtomicU64; 3],
    /// Whether anything was queued since all was given back. A hint, so that vCPUs which need a page at once, all of them,
    /// do not meet at two locks to find nothing.
    any: AtomicBool,
}

impl Grace {
    /// Subtrees waiting before an invalidation that ends waits for a grace period, which costs about as much as filling
    /// these many tables; and how many pages it then takes apart at most.
    const BATCH: usize = 32;

    /// Queues subtrees; true where so many wait that they are worth a grace period.
    #[inline]
    pub(crate) fn defer(&self, mut tops: Flushed) -> bool {
        let mut queue = self.flushed.lock();
        queue.append(&mut tops.0);
        if queue.len() > 0 {
            self.any.store(true, Relaxed);
        }
        queue.len() >= Self::BATCH
    }

    /// Returns when all threads that wait for a grace period now have had it. Later ones are counted elsewhere: a
    /// crowd of them holds up no thread.
    fn wait_for_concurrent_grace_periods(&self) {
        let began = self.dead.lock().round;
        for round in [began, began + 1] {
            let mut patience = Patience::default();
            loop {
                let mut dead = self.dead.lock();
                // A round ends only when no thread is left of the one before it.
                if dead.round != round || dead.waiting[(round + 1) % 2] == 0 {
                    dead.round = dead.round.max(round + 1);
                    break;
                }
                drop(dead);
                patience.wait();
            }
        }
    }

    /// Says so where nothing is queued and no thread has anything in hand. False.
    fn find_none(&self) -> bool {
        let (queue, dead) = (self.flushed.lock(), self.dead.lock());
        if queue.len() + dead.tops.len() + dead.busy + dead.waiting[0] + dead.waiting[1] == 0 {
            self.any.store(false, Relaxed);
        }
        false
    }

    /// Flushed subtrees, and those that are being taken apart.
    pub(crate) fn waiting(&self) -> usize {
        self.flushed.lock().len() + self.dead.lock().tops.len()
    }

    /// Leaves of `level` that died with their tables.
    pub(crate) fn leaves(&self, level: Level) -> u64 {
        self.leaves[usize::from(level.number()) - 1].load(Relaxed)
    }

    /// What is queued, for a thread that waits for a grace period anyway, and then calls [`bury`](Self::bury).
    pub(crate) fn take_flushed(&self) -> Option<OutOfQueue> {
        let mut queue = self.flushed.lock();
        if queue.len() == 0 {
            return None;
        }
        let mut dead = self.dead.lock();
        let round = dead.round;
        dead.waiting[round % 2] += 1;
        Some(OutOfQueue { flushed: Flushed(core::mem::take(&mut *queue)), round })
    }

    /// A grace period has begun and ended since these were taken.
    pub(crate) fn bury(&self, mut taken: OutOfQueue) {
        let mut dead = self.dead.lock();
        dead.tops.append(&mut taken.flushed.0);
        dead.waiting[taken.round % 2] -= 1;
    }

    /// Not yet: another thread may have more patience.
    fn put_back(&self, mut taken: OutOfQueue) {
        self.flushed.lock().append(&mut taken.flushed.0);
        self.dead.lock().waiting[taken.round % 2] -= 1;
    }

    /// Every page that waits, those below the tops included. Exact while nothing else happens.
    pub(crate) fn count<F: Format, M: TableMemory>(&self, memory: &M) -> u64 {
        let (flushed, dead) = (self.flushed.lock(), self.dead.lock());
        let mut pages = 0;
        for top in flushed.iter().chain(dead.tops.iter()) {
            // SAFETY: owned by the queues, which are locked.
            let level = unsafe { top.note() }.level.get();
            pages += count_tables::<F, M>(memory, top, level);
        }
        pages
    }
}

/// The dead tables of a VM, the readers that they wait for, and where their pages go.
pub(crate) struct DeadTables<'a, F, M> {
    pub(crate) grace: &'a Grace,
    pub(crate) reads: &'a ReadSide,
    pub(crate) memory: &'a M,
    pub(crate) pool: &'a Pool,
    pub(crate) format: PhantomData<F>,
}

impl<F: Format, M: TableMemory + TableEvents> DeadTables<'_, F, M> {
    /// Waits for a grace period, and takes a few pages apart. The caller holds `Idle`.
    pub(crate) fn collect_some(&self) {
        self.wait();
        self.take_some_apart();
    }

    /// Waits for a grace period and gives everything that was queued before it back to the pool, what others have in
    /// hand included. The caller holds `Idle`.
    pub(crate) fn collect(&self) {
        self.wait();
        self.grace.wait_for_concurrent_grace_periods();
        let mut patience = Patience::default();
        loop {
            while self.take_apart(Grace::BATCH) {}
            let dead = self.grace.dead.lock();
            if dead.busy == 0 && dead.tops.len() == 0 {
                return;
            }
            drop(dead);
            patience.wait();
        }
    }

    /// One page for the pool, if any can be had without a wait for a reader that takes long.
    pub(crate) fn reuse(&self) -> bool {
        if !self.grace.any.load(Relaxed) {
            return false;
        }
        if self.grace.dead.lock().tops.len() == 0
            && let Some(taken) = self.grace.take_flushed()
        {
            if self.reads.try_synchronize() {
                self.grace.bury(taken);
                self.memory.grace_period_ended();
            } else {
                self.grace.put_back(taken);
            }
        }
        self.take_apart(1) || self.grace.find_none()
    }

    /// The same, however long that takes.
    pub(crate) fn reuse_late(&self) -> bool {
        self.wait();
        self.take_apart(1)
    }

    fn wait(&self) {
        if let Some(taken) = self.grace.take_flushed() {
            if !seeded!(GraceSkipped) {
                self.reads.synchronize();
            }
            self.grace.bury(taken);
            self.memory.grace_period_ended();
        }
    }

    /// Takes a few pages apart of what is dead by now.
    pub(crate) fn take_some_apart(&self) {
        self.take_apart(Grace::BATCH);
    }

    /// Takes up to `pages` pages apart; whether there was one.
    fn take_apart(&self, pages: usize) -> bool {
        let (mut free, mut roots, mut children) =
            (NodeList::default(), NodeList::default(), NodeList::default());
        let mut dead = {
            let mut all = self.grace.dead.lock();
            if all.tops.len() == 0 {
                return false;
            }
            all.busy += 1;
            all.tops.split_off(pages)
        };
        let mut died = [0; 3];
        while let Some(node) = dead.pop() {
            // SAFETY: the grace period is over: the page is ours alone.
            let level = unsafe { node.note() }.level.get();
            let pages = pages_of::<F>(level);
            for page in (0..pages).map(|page| node.beside(page)) {
                let leaves = scan::<F, M>(self.memory, page, level, &mut children);
                if leaves > 0 {
                    died[usize::from(level.number()) - 1] += leaves;
                }
                #[cfg(all(test, shuttle))]
                page.fill(crate::shuttle_tests::GIVEN_BACK);
                #[cfg(all(seeded, virtual_time))]
                page.give_back();
            }
            if pages == 1 { free.push(node) } else { roots.push(node) }
        }
        for (count, leaves) in self.grace.leaves.iter().zip(died).filter(|(_, leaves)| *leaves > 0) {
            count.fetch_add(leaves, Relaxed);
        }
        self.pool.give_back(free);
        self.pool.give_back_roots(roots);
        self.pool.trim(self.memory);
        let mut all = self.grace.dead.lock();
        all.tops.append(&mut children);
        all.busy -= 1;
        drop(all);
        // Where that panics nothing is left undone.
        for (level, leaves) in SIZES.into_iter().zip(died).filter(|(_, leaves)| *leaves > 0) {
            self.memory.tables_freed(level, leaves);
        }
        true
    }
}

/// The levels of leaves.
const SIZES: [Level; 3] = [Level::K4, Level::M2, Level::G1];

/// Pages of a table of `level`.
const fn pages_of<F: Format>(level: Level) -> usize {
    if level.number() == F::LEVELS { F::ROOT_PAGES } else { 1 }
}

/// The leaves in a page of a dead table of `level`; tables that it links are added to `children`.
fn scan<F: Format, M: TableMemory>(memory: &M, node: Node, level: Level, children: &mut NodeList) -> u64 {
    // SAFETY: the grace period is over: the page is ours alone, and what it links.
    let words = unsafe { node.words() };
    // Of the lower halves, four or more at a time: the bits that make a word present are there.
    let present = |&word: &u64| u32::from(word as u32 & F::PRESENT as u32 != 0);
    let mut leaves = u64::from(words.iter().map(present).sum::<u32>());
    if !F::HARDWARE_AD {
        leaves += words.iter().filter(|&&word| Word(word).is_tracked()).count() as u64;
    }
    if level > Level::K4 {
        for &word in words.iter().filter(|&&word| F::is_table(Word(word), level)) {
            // SAFETY: linked from a page that is ours alone.
            let child = unsafe { Node::follow(memory, F::pfn(Word(word))) };
            // SAFETY: as above.
            unsafe { child.note() }.level.set(level.down());
            children.push(child);
            leaves -= 1;
        }
    }
    leaves
}

/// Calls `visit` with each page of the tables below `node`, and then with its own.
pub(crate) fn for_tables<F: Format, M: TableMemory>(
    memory: &M,
    node: Node,
    level: Level,
    visit: &mut impl FnMut(Node),
) {
    for page in (0..pages_of::<F>(level)).map(|page| node.beside(page)) {
        if level > Level::K4 {
            // SAFETY: the caller sees to it that nothing of this subtree is given back meanwhile, but by `visit`.
            let words = unsafe { page.entries() }.iter().map(Entry::peek);
            for link in words.filter(|&word| F::is_table(word, level)) {
                // SAFETY: as above.
                let child = unsafe { Node::follow(memory, F::pfn(link)) };
                for_tables::<F, M>(memory, child, level.down(), visit);
            }
        }
        visit(page);
    }
}

/// How many those are.
pub(crate) fn count_tables<F: Format, M: TableMemory>(memory: &M, node: Node, level: Level) -> u64 {
    let mut pages = 0;
    for_tables::<F, M>(memory, node, level, &mut |_| pages += 1);
    pages
}
