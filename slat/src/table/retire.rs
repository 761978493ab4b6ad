//! How a table page dies: steps that are types, each consuming the one before (the TDP MMU series).
//!
//! ```text
//!  linked ──unhook──▶ Unlinked ──shootdown──▶ Flushed ──grace period──▶ dead ──taken apart──▶ pool
//!                     no walk finds it        no hardware walker        no software walk
//!                     from the root           holds it in a paging-     is still inside it
//!                                             structure cache
//! ```
//! No other way leads from a linked page to the pool. An [`Unlinked`] lives in a [`FlushDebt`](crate::tlb::FlushDebt),
//! settling the debt yields a [`Flushed`], and only [`Grace`] takes one.
//!
//! A whole subtree dies with its top: unhooking 1 GiB is one CAS. The entries below are *not* overwritten (the TDP MMU
//! series fills them with special entries; KVM freezes each). A walk that is already inside the dead table may
//! continue. Its writes have no effect on the guest. A leaf that it installs reaches no TLB that outlives the
//! shootdown, and the host changes nothing before the shootdown. A number that it writes into a hole is not missed in
//! the live table, because the live table gets a newer number before the invalidation that unhooked ends
//! ([`crate::active`]).
//!
//! The engine therefore counts and takes apart dead tables by plain loads, a page at a time, when no other thread can
//! reach them. That is many times faster than an exchange for each entry. (`proof/model/` checks all of this.)

use super::memory::NodeList;
use super::{At, Entry, Format, Node, Pool, TableMemory, Word};
use crate::addr::{Gfn, Level, Span};
use crate::callbacks::Finally;
use crate::sync::prim::{AtomicBool, AtomicU64, Mutex, Patience, Relaxed};
use crate::sync::readside::ReadSide;
use core::cmp::Reverse;
use core::marker::PhantomData;

/// Unhooked subtrees that a hardware walker may still hold.
#[derive(Debug, Default)]
pub(crate) struct Unlinked(NodeList);

/// Subtrees that only earlier software walks may still hold.
#[derive(Debug, Default)]
#[must_use = "flushed pages go to the grace queue"]
pub(crate) struct Flushed(NodeList);

impl Unlinked {
    /// Adds the subtree of `top`, a table of `level`.
    #[cold]
    pub(crate) fn add(&mut self, top: Node, level: Level) {
        // SAFETY: the caller unhooked it, and owns it now.
        unsafe { top.note() }.level.set(level);
        self.0.push(top);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Called by the shootdown after its last answer: no hardware walker holds a page of it.
    pub(crate) fn flushed(self) -> Flushed {
        Flushed(self.0)
    }
}

/// Subtrees that a thread took from the queue before it waits for a grace period.
#[must_use = "pass it to `mark_dead` after a grace period"]
pub(crate) struct AwaitingGrace {
    flushed: Flushed,
    round: usize,
}

/// Subtrees that no other thread can reach.
#[derive(Debug, Default)]
struct Dead {
    /// Tops of subtrees to take apart.
    tops: NodeList,
    /// Number of threads that are taking tables apart. They will add children to `tops`.
    busy: usize,
    /// Number of threads that wait for a grace period with subtrees in hand, by the parity of the round in which they
    /// began.
    waiting: [usize; 2],
    round: usize,
}

/// Events of unhooked tables. A panic of an implementation leaves no work undone.
pub(crate) trait TableEvents {
    /// A grace period for unhooked tables has ended.
    fn grace_period_ended(&self);
    /// Tables with `leaves` leaves of `level` were taken apart.
    fn tables_freed(&self, level: Level, leaves: u64);
}

/// The queue of subtrees before their grace period, and those after it.
#[derive(Debug, Default)]
pub(crate) struct Grace {
    flushed: Mutex<NodeList>,
    dead: Mutex<Dead>,
    /// Number of leaves found in dead tables, by level.
    leaves: [AtomicU64; 3],
    /// Whether anything was queued since everything was returned. A hint: if all vCPUs need a page at once, it saves
    /// them two locks that would show nothing.
    any: AtomicBool,
}

impl Grace {
    /// Number of waiting subtrees at which the end of an invalidation waits for a grace period; the wait costs about as
    /// much as filling so many tables. Also the maximum number of pages that it then takes apart.
    const BATCH: usize = 32;

    /// Queues subtrees. Returns true if enough wait to make a grace period worthwhile.
    #[inline]
    pub(crate) fn defer(&self, mut tops: Flushed) -> bool {
        let mut queue = self.flushed.lock();
        queue.append(&mut tops.0);
        if queue.len() > 0 {
            self.any.store(true, Relaxed);
        }
        queue.len() >= Self::BATCH
    }

    /// Waits until every thread that waits for a grace period now has had one. Threads that begin later do not delay
    /// it, because they count in another round.
    fn wait_for_concurrent_grace_periods(&self) {
        let began = self.dead.lock().round;
        for round in [began, began + 1] {
            let mut patience = Patience::default();
            loop {
                let mut dead = self.dead.lock();
                // A round ends only when no thread of the round before it is left.
                if dead.round != round || dead.waiting[(round + 1) % 2] == 0 {
                    dead.round = dead.round.max(round + 1);
                    break;
                }
                drop(dead);
                patience.wait();
            }
        }
    }

    /// Clears `any` if nothing is queued and no thread has subtrees in hand. Returns false.
    fn clear_hint_if_empty(&self) -> bool {
        let (queue, dead) = (self.flushed.lock(), self.dead.lock());
        if queue.len() + dead.tops.len() + dead.busy + dead.waiting[0] + dead.waiting[1] == 0 {
            self.any.store(false, Relaxed);
        }
        false
    }

    /// Number of flushed subtrees, and of those being taken apart.
    pub(crate) fn waiting(&self) -> usize {
        self.flushed.lock().len() + self.dead.lock().tops.len()
    }

    /// Number of threads that are taking tables apart.
    #[cfg(test)]
    pub(crate) fn busy(&self) -> usize {
        self.dead.lock().busy
    }

    /// Number of leaves of `level` that died with their tables.
    pub(crate) fn leaves(&self, level: Level) -> u64 {
        self.leaves[usize::from(level.number()) - 1].load(Relaxed)
    }

    /// Takes the queue, for a thread that waits for a grace period anyway and then calls [`mark_dead`](Self::mark_dead).
    pub(crate) fn take_flushed(&self) -> Option<AwaitingGrace> {
        let mut queue = self.flushed.lock();
        if queue.len() == 0 {
            return None;
        }
        let mut dead = self.dead.lock();
        let round = dead.round;
        dead.waiting[round % 2] += 1;
        Some(AwaitingGrace { flushed: Flushed(core::mem::take(&mut *queue)), round })
    }

    /// Marks subtrees dead; a grace period has begun and ended since they were taken.
    pub(crate) fn mark_dead(&self, mut taken: AwaitingGrace) {
        let mut dead = self.dead.lock();
        dead.tops.append(&mut taken.flushed.0);
        dead.waiting[taken.round % 2] -= 1;
    }

    /// Requeues subtrees whose grace period this thread did not wait for.
    fn put_back(&self, mut taken: AwaitingGrace) {
        self.flushed.lock().append(&mut taken.flushed.0);
        self.dead.lock().waiting[taken.round % 2] -= 1;
    }

    /// Number of all waiting pages, including those below the tops. Exact while no other thread changes them.
    pub(crate) fn count<F: Format, M: TableMemory>(&self, memory: &M) -> u64 {
        let (flushed, dead) = (self.flushed.lock(), self.dead.lock());
        let mut pages = 0;
        for top in flushed.iter().chain(dead.tops.iter()) {
            // SAFETY: the queues own it, and are locked.
            let level = unsafe { top.note() }.level.get();
            pages += count_tables::<F, M>(memory, top, level);
        }
        pages
    }
}

/// The dead tables of a VM, with the readers to wait for and the pool of their pages.
pub(crate) struct DeadTables<'a, F, M, E> {
    pub(crate) grace: &'a Grace,
    pub(crate) reads: &'a ReadSide,
    pub(crate) memory: &'a M,
    pub(crate) events: &'a E,
    pub(crate) pool: &'a Pool,
    pub(crate) format: PhantomData<F>,
}

impl<F: Format, M: TableMemory, E: TableEvents> DeadTables<'_, F, M, E> {
    /// Waits for a grace period and takes a few pages apart. The caller holds `Idle`.
    pub(crate) fn collect_some(&self) {
        self.wait();
        self.take_some_apart();
    }

    /// Waits for a grace period, and returns everything that was queued before it to the pool, including what other
    /// threads have in hand. The caller holds `Idle`.
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

    /// Frees one page for the pool, if that needs no long wait for a reader.
    pub(crate) fn reuse(&self) -> bool {
        if !self.grace.any.load(Relaxed) {
            return false;
        }
        if self.grace.dead.lock().tops.len() == 0
            && let Some(taken) = self.grace.take_flushed()
        {
            if self.reads.try_synchronize() {
                self.grace.mark_dead(taken);
                self.events.grace_period_ended();
            } else {
                self.grace.put_back(taken);
            }
        }
        self.take_apart(1) || self.grace.clear_hint_if_empty()
    }

    /// Frees one page for the pool, however long the wait.
    pub(crate) fn reuse_late(&self) -> bool {
        self.wait();
        self.take_apart(1)
    }

    fn wait(&self) {
        if let Some(taken) = self.grace.take_flushed() {
            self.reads.synchronize();
            self.grace.mark_dead(taken);
            self.events.grace_period_ended();
        }
    }

    /// Takes a few pages of dead tables apart.
    pub(crate) fn take_some_apart(&self) {
        self.take_apart(Grace::BATCH);
    }

    /// Takes up to `pages` pages apart. Returns whether there was one.
    fn take_apart(&self, pages: usize) -> bool {
        let (mut free, mut roots) = (NodeList::default(), NodeList::default());
        let mut dead = {
            let mut all = self.grace.dead.lock();
            if all.tops.len() == 0 {
                return false;
            }
            all.busy += 1;
            all.tops.split_off(pages)
        };
        // The nodes that this thread has in hand. At the end they are no longer busy, and no child is lost, even if the
        // host panics.
        let in_hand = self.grace;
        let mut children = Finally::with(NodeList::default(), |children: &mut NodeList| {
            let mut all = in_hand.dead.lock();
            all.tops.append(children);
            all.busy -= 1;
        });
        let mut died = [0; 3];
        while let Some(node) = dead.pop() {
            // SAFETY: the grace period is over, so only this thread reaches the page.
            let level = unsafe { node.note() }.level.get();
            let pages = pages_of::<F>(level);
            for page in (0..pages).map(|page| node.beside(page)) {
                let leaves = scan::<F, M>(self.memory, page, level, &mut children);
                if leaves > 0 {
                    died[usize::from(level.number()) - 1] += leaves;
                }
                #[cfg(all(test, shuttle))]
                page.fill(crate::shuttle_tests::GIVEN_BACK);
                #[cfg(explored)]
                page.give_back();
            }
            if pages == 1 { free.push(node) } else { roots.push(node) }
        }
        for (count, leaves) in self.grace.leaves.iter().zip(died).filter(|(_, leaves)| *leaves > 0) {
            count.fetch_add(leaves, Relaxed);
        }
        self.pool.give_back(free);
        self.pool.give_back_roots(roots);
        drop(children);
        self.pool.trim(self.memory);
        // Last, so that a panic leaves nothing undone.
        for (level, leaves) in SIZES.into_iter().zip(died).filter(|(_, leaves)| *leaves > 0) {
            self.events.tables_freed(level, leaves);
        }
        true
    }
}

/// The levels that leaves can have.
const SIZES: [Level; 3] = [Level::K4, Level::M2, Level::G1];

/// Returns the number of pages of a table of `level`.
const fn pages_of<F: Format>(level: Level) -> usize {
    if level.number() == F::LEVELS { F::ROOT_PAGES } else { 1 }
}

/// Returns the number of leaves in a page of a dead table of `level`. Adds the tables that it links to `children`.
fn scan<F: Format, M: TableMemory>(memory: &M, node: Node, level: Level, children: &mut NodeList) -> u64 {
    // SAFETY: the grace period is over, so only this thread reaches the page and the pages that it links.
    let words = unsafe { node.words() };
    // Uses the lower halves, to process four or more at a time: the bits that make a word present are there.
    let present = |&word: &u64| u32::from(word as u32 & F::PRESENT as u32 != 0);
    let mut leaves = u64::from(words.iter().map(present).sum::<u32>());
    if !F::HARDWARE_AD {
        leaves += words.iter().filter(|&&word| Word(word).is_withdrawn()).count() as u64;
    }
    if level > Level::K4 {
        for &word in words.iter().filter(|&&word| F::is_table(Word(word), level)) {
            // SAFETY: linked from a page that only this thread reaches.
            let child = unsafe { Node::follow(memory, F::pfn(Word(word))) };
            // SAFETY: as above.
            unsafe { child.note() }.level.set(level.down());
            children.push(child);
            leaves -= 1;
        }
    }
    leaves
}

/// Calls `visit` with each page of the tables below `node`, and then with the pages of `node`.
pub(crate) fn for_tables<F: Format, M: TableMemory>(
    memory: &M,
    node: Node,
    level: Level,
    visit: &mut impl FnMut(Node),
) {
    for page in (0..pages_of::<F>(level)).map(|page| node.beside(page)) {
        if level > Level::K4 {
            // SAFETY: by the caller's contract, only `visit` frees pages of this subtree meanwhile.
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

/// Counts the pages of a table along a walk, which may visit entries again after a yield.
pub(crate) struct TableCount<F> {
    pages: u64,
    /// The last link that was counted. A walk visits an entry before those below it.
    last: Option<(Gfn, Reverse<Level>)>,
    _format: PhantomData<F>,
}

impl<F: Format> Default for TableCount<F> {
    fn default() -> Self {
        Self { pages: F::ROOT_PAGES as u64, last: None, _format: PhantomData }
    }
}

impl<F: Format> TableCount<F> {
    /// Counts the table that an entry links.
    pub(crate) fn see(&mut self, at: &At<'_>, gfns: Span<Gfn>) {
        let this = Some((gfns.start, Reverse(at.level)));
        if F::is_table(at.word, at.level) && self.last < this {
            (self.last, self.pages) = (this, self.pages + 1);
        }
    }

    /// Returns the number of pages, the root's included.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }
}

/// Returns the number of these pages.
pub(crate) fn count_tables<F: Format, M: TableMemory>(memory: &M, node: Node, level: Level) -> u64 {
    let mut pages = 0;
    for_tables::<F, M>(memory, node, level, &mut |_| pages += 1);
    pages
}
