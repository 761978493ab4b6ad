//! Kept copies: copies of pages that came back. If the page is not written until it is swapped out again, it
//! need not be stored.
//!
//! A page comes back without write permission. The fault of its first write removes the kept copy
//! ([`AddressSpace::no_longer_same`](crate::AddressSpace)), in the same places that make the page soft-dirty.
//! So **the entry of a page with a kept copy is not writable, and the page equals the copy**.
//!
//! Only copies on a device are kept, and only while it is half empty: in memory they would take the room that
//! swap-out is to make. If the device gets full anyway, all kept copies are dropped.

use super::{HeldCopy, Swap, SwapEntry};
use parking_lot::Mutex;
use slat::{Gfn, Span};
use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The kept copies of an address space. A page's copy changes only under its page lock, or is dropped.
#[derive(Debug, Default)]
pub(crate) struct KeptCopies {
    /// Whether `copies` was ever filled. Until then each grant of write permission costs one load here.
    used: AtomicBool,
    /// Each with a reference.
    copies: Mutex<BTreeMap<Gfn, SwapEntry>>,
}

impl KeptCopies {
    /// Records that the page equals the copy.
    pub(crate) fn insert(&self, page: Gfn, copy: HeldCopy<'_>) {
        // A fault that grants write permission to the page holds the same page lock as this caller.
        self.used.store(true, Relaxed);
        self.copies.lock().insert(page, copy.keep());
    }

    /// Takes the page's copy, if it has one, with its reference.
    pub(crate) fn take<'a>(&self, swap: &'a Swap, page: Gfn) -> Option<HeldCopy<'a>> {
        let entry = self.used.load(Relaxed).then(|| self.copies.lock().remove(&page)).flatten();
        entry.map(|entry| HeldCopy::new(swap, entry))
    }

    /// Drops the copies of pages that are written to from now on, or gone.
    #[inline]
    pub(crate) fn remove(&self, swap: Option<&Swap>, pages: Span<Gfn>) {
        if self.used.load(Relaxed)
            && let Some(swap) = swap
        {
            self.remove_used(swap, pages);
        }
    }

    #[cold]
    fn remove_used(&self, swap: &Swap, pages: Span<Gfn>) {
        let mut copies = self.copies.lock();
        while let Some((&page, _)) = copies.range(pages.start..pages.end).next() {
            if let Some(entry) = copies.remove(&page) {
                swap.put(entry);
            }
        }
    }

    /// Drops all copies; returns whether there were any.
    pub(crate) fn clear(&self, swap: &Swap) -> bool {
        let copies = mem::take(&mut *self.copies.lock());
        for &entry in copies.values() {
            swap.put(entry);
        }
        !copies.is_empty()
    }
}
