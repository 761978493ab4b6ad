//! From a single page to its note: a radix tree of the whole process, keyed by the page's address.
//!
//! ```text
//! address   [ 57 … 48 ][ 47 … 39 ][ 38 … 30 ][ 29 … 21 ][ 20 … 12 ]
//!             root       node       node       node       leaf: the note, or null
//! ```
//! No page is at two places, so one tree serves all VMs. Looking a page up takes no lock. A node that has been linked stays:
//! threads need no grace period to look. So the tree has 4 KiB for each range of 2 MiB from which a host ever lent a page, and
//! as much again for each 512 of them. A process without single pages has the root alone.

use crate::addr::{INDEX_BITS, PAGE_SHIFT};
use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::ptr::{NonNull, null_mut};
// In a static, where loom's atomics cannot be. What is published here are addresses that only their owner looks up.
use core::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Relaxed, Release},
};

const SLOTS: usize = 1 << INDEX_BITS;
/// Levels below the root, the leaf included.
const BELOW: u32 = 4;

type Node = [AtomicPtr<()>; SLOTS];

static ROOT: Node = [const { AtomicPtr::new(null_mut()) }; SLOTS];

/// The slot for `page` in a node that has as many levels below it.
#[inline]
fn index(page: NonNull<u8>, below: u32) -> usize {
    page.as_ptr().addr() >> (PAGE_SHIFT + below * INDEX_BITS) & (SLOTS - 1)
}

/// The note of `page`, if it is a single page.
#[inline(always)]
pub(super) fn find(page: NonNull<u8>) -> Option<NonNull<()>> {
    // ORDER(link): Acquire, as in `find_in`.
    NonNull::new(ROOT[index(page, BELOW)].load(Acquire)).and_then(|node| find_in(node, page))
}

#[cold]
fn find_in(mut node: NonNull<()>, page: NonNull<u8>) -> Option<NonNull<()>> {
    for below in (0..BELOW).rev() {
        // SAFETY: nodes stay.
        let slot = unsafe { &node.cast::<Node>().as_ref()[index(page, below)] };
        // ORDER(link): as in tables. Acquire pairs with the Release in `link`: the node is zeroed; and with that in `insert`: the note is
        // written. A thread that has a page got it from its lender or by a link, and that was later.
        node = NonNull::new(slot.load(Acquire))?;
    }
    Some(node)
}

/// From now on `page` has this note. `None` where there is no memory for the nodes on the way.
pub(super) fn insert(page: NonNull<u8>, note: NonNull<()>) -> Option<()> {
    // ORDER(link): see `find_in`.
    slot(page)?.store(note.as_ptr(), Release);
    Some(())
}

/// From now on it has none.
pub(super) fn remove(page: NonNull<u8>) {
    if let Some(slot) = slot(page) {
        slot.store(null_mut(), Relaxed);
    }
}

/// The leaf's slot for `page`; the nodes on the way are made.
fn slot(page: NonNull<u8>) -> Option<&'static AtomicPtr<()>> {
    let mut slot = &ROOT[index(page, BELOW)];
    for below in (0..BELOW).rev() {
        // ORDER(link): see `find_in`.
        let node = match NonNull::new(slot.load(Acquire)) {
            Some(node) => node,
            None => link(slot)?,
        };
        // SAFETY: nodes stay.
        slot = unsafe { &node.cast::<Node>().as_ref()[index(page, below)] };
    }
    Some(slot)
}

/// Links a fresh node, unless another thread does.
fn link(slot: &AtomicPtr<()>) -> Option<NonNull<()>> {
    if injected!(Alloc) {
        return None;
    }
    let layout = Layout::new::<Node>();
    // SAFETY: not of size zero. Null pointers are all zeroes.
    let fresh = NonNull::new(unsafe { alloc_zeroed(layout) })?.cast::<()>();
    // ORDER(link): as in tables. Release publishes the zeroes; Acquire for the other's.
    match slot.compare_exchange(null_mut(), fresh.as_ptr(), Release, Acquire) {
        Ok(_) => Some(fresh),
        Err(other) => {
            // SAFETY: allocated above, linked nowhere.
            unsafe { dealloc(fresh.as_ptr().cast(), layout) };
            NonNull::new(other)
        }
    }
}
