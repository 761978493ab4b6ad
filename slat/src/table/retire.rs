//! How a table page dies: three steps, each a type that consumes the one before (seed 003).
//!
//! ```text
//!  linked ──unhook──▶ Unlinked ──shootdown──▶ Flushed ──grace period──▶ pool
//!                     no walk finds it        no hardware walker         no software walk
//!                     again; its entries      holds it in a paging-      still stands in it
//!                     say Retired             structure cache
//! ```
//! There is no other way from a linked page to the pool: an [`Unlinked`] lives in a
//! [`FlushDebt`](crate::tlb::FlushDebt), settling the debt yields a [`Flushed`], and only
//! [`Grace::collect`] takes one.

use super::memory::Node;
use super::pool::Pool;
use crate::sync::prim::Mutex;
use crate::sync::readside::ReadSide;

/// Table pages in nobody's table, threaded through their own notes. Owning the list is owning the pages.
#[derive(Debug, Default)]
pub(crate) struct NodeList {
    head: Option<Node>,
    tail: Option<Node>,
    len: usize,
}

impl NodeList {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, node: Node) {
        // SAFETY: the list owns its pages, and now this one.
        unsafe { node.note() }.next.set(self.head);
        self.tail = self.tail.or(Some(node));
        self.head = Some(node);
        self.len += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<Node> {
        let node = self.head?;
        // SAFETY: owned by the list until here.
        self.head = unsafe { node.note() }.next.take();
        self.len -= 1;
        if self.head.is_none() {
            self.tail = None;
        }
        Some(node)
    }

    pub(crate) fn append(&mut self, other: &mut Self) {
        let Some(last) = other.tail else { return };
        // SAFETY: owned by `other`, which is emptied here.
        unsafe { last.note() }.next.set(self.head);
        self.tail = self.tail.or(other.tail);
        self.head = other.head;
        self.len += other.len;
        *other = Self::default();
    }
}

/// Pages out of every table, which a hardware walker may still hold.
#[derive(Debug, Default)]
pub(crate) struct Unlinked(NodeList);

/// Pages that only a software walk that began earlier may still hold.
#[derive(Debug, Default)]
#[must_use = "flushed pages go to the grace queue"]
pub(crate) struct Flushed(NodeList);

impl Unlinked {
    pub(crate) fn add(&mut self, node: Node) {
        self.0.push(node);
    }

    pub(crate) fn append(&mut self, other: &mut Self) {
        self.0.append(&mut other.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The hardware has let go of every page in it: to be called by the shootdown, after its last answer.
    pub(crate) fn flushed(self) -> Flushed {
        Flushed(self.0)
    }
}

/// Flushed pages waiting for a grace period.
#[derive(Debug)]
pub(crate) struct Grace {
    queue: Mutex<NodeList>,
}

impl Grace {
    /// Pages waiting before an invalidation that ends collects them. A grace period costs about as much as
    /// filling these many tables.
    const BATCH: usize = 32;

    pub(crate) fn new() -> Self {
        Self { queue: Mutex::new(NodeList::default()) }
    }

    /// Queues pages; true where so many wait that they are worth a grace period.
    pub(crate) fn defer(&self, mut pages: Flushed) -> bool {
        let mut queue = self.queue.lock();
        queue.append(&mut pages.0);
        queue.len() >= Self::BATCH
    }

    /// Waits for a grace period and gives what was queued before it back to the pool. The caller holds `Idle`.
    pub(crate) fn collect(&self, reads: &ReadSide, pool: &Pool) {
        let pages = core::mem::take(&mut *self.queue.lock());
        if pages.len() > 0 {
            reads.synchronize();
            pool.give_back(pages);
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.lock().len()
    }
}
