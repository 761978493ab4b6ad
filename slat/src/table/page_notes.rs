//! The notes of single pages: a radix tree for the whole process, keyed by the page's address.
//!
//! ```text
//! address   [ 57 … 48 ][ 47 … 39 ][ 38 … 30 ][ 29 … 21 ][ 20 … 12 ]
//!             root       node       node       node       leaf: the note, or null
//! ```
//! An address belongs to one page, so one tree serves all VMs. A look-up takes no lock. A linked node is never freed,
//! so look-ups need no grace period. The tree therefore has 4 KiB for each range of 2 MiB from which a host ever lent a
//! page, and 4 KiB more for each 512 of them. A process without single pages has only the root.

use crate::addr::{INDEX_BITS, PAGE_SHIFT};
use crate::fallible;
use alloc::alloc::{Layout, dealloc};
use core::ptr::{NonNull, null_mut};
// In a static, where loom's atomics are impossible. The published addresses are looked up only by the page's owner.
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

const SLOTS: usize = 1 << INDEX_BITS;
/// Number of levels below the root, including the leaves.
const BELOW: u32 = 4;

type Node = [AtomicPtr<()>; SLOTS];

static ROOT: Node = [const { AtomicPtr::new(null_mut()) }; SLOTS];

/// Returns the index of `page` in a node with `below` levels below it.
#[inline]
fn index(page: NonNull<u8>, below: u32) -> usize {
    page.as_ptr().addr() >> (PAGE_SHIFT + below * INDEX_BITS) & (SLOTS - 1)
}

/// Returns the note of `page` if it is a single page.
#[inline(always)]
pub(super) fn find(page: NonNull<u8>) -> Option<NonNull<()>> {
    let node = ROOT[index(page, BELOW)].load(order!(link.find_note, Acquire));
    NonNull::new(node).and_then(|node| find_in(node, page))
}

#[cold]
fn find_in(mut node: NonNull<()>, page: NonNull<u8>) -> Option<NonNull<()>> {
    for below in (0..BELOW).rev() {
        // SAFETY: nodes are never freed.
        let slot = unsafe { &node.cast::<Node>().as_ref()[index(page, below)] };
        // As in tables. Pairs with the Release in `link`: the node is zeroed. Pairs with the Release in `insert`: the
        // note is written. A thread has a page from its lender or by a link, and both come after `insert`.
        node = NonNull::new(slot.load(order!(link.find_note, Acquire)))?;
    }
    Some(node)
}

/// Registers `note` for `page`. Returns `None` if memory for a node is missing.
pub(super) fn insert(page: NonNull<u8>, note: NonNull<()>) -> Option<()> {
    // Pairs with `find_in`.
    slot(page)?.store(note.as_ptr(), order!(link.note, Release));
    Some(())
}

/// Removes the note of `page`.
pub(super) fn remove(page: NonNull<u8>) {
    if let Some(slot) = slot(page) {
        slot.store(null_mut(), Relaxed);
    }
}

/// Returns the leaf slot of `page`, and creates missing nodes.
fn slot(page: NonNull<u8>) -> Option<&'static AtomicPtr<()>> {
    let mut slot = &ROOT[index(page, BELOW)];
    for below in (0..BELOW).rev() {
        let node = match NonNull::new(slot.load(order!(link.find_note, Acquire))) {
            Some(node) => node,
            None => link(slot)?,
        };
        // SAFETY: nodes are never freed.
        slot = unsafe { &node.cast::<Node>().as_ref()[index(page, below)] };
    }
    Some(slot)
}

/// Links a new node, unless another thread has linked one.
fn link(slot: &AtomicPtr<()>) -> Option<NonNull<()>> {
    let layout = Layout::new::<Node>();
    // SAFETY: the size is not zero. Null pointers are all zeroes.
    let fresh = unsafe { fallible::alloc_zeroed(layout) }?.cast::<()>();
    // Release, as in tables, publishes the zeroes; Acquire for another thread's node.
    let (won, lost) = (order!(link.note_node, Release), order!(link.find_note, Acquire));
    match slot.compare_exchange(null_mut(), fresh.as_ptr(), won, lost) {
        Ok(_) => Some(fresh),
        Err(other) => {
            // SAFETY: allocated above, and never linked.
            unsafe { dealloc(fresh.as_ptr().cast(), layout) };
            NonNull::new(other)
        }
    }
}
