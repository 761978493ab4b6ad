//! Copies that are kept of pages that came back: a page that was not written meanwhile goes again without being stored.
//!
//! A page that comes back is not writable, so the first write to it is noticed, and the fault that gives write permission says
//! that the page is not what it was: [`AddressSpace::no_longer_same`](crate::AddressSpace), at the same places that make
//! it soft-dirty. So **of a page that has a kept copy the entry is not writable, and both hold the same**.
//!
//! Only copies on a device are kept, and only while it is half empty: in memory they would take the room that swapping out
//! is to make. Where the device is full all the same, all of them go.

use super::{HeldCopy, Sabotage, Swap, SwapEntry};
use parking_lot::Mutex;
use slat::{Gfn, Span};
use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The kept copies of an address space. Those of a page change under its page lock, or go.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Whether there ever were any: until then this costs a load for each write permission given.
    used: AtomicBool,
    /// With a reference to each.
    copies: Mutex<BTreeMap<Gfn, SwapEntry>>,
}

impl Kept {
    /// The page holds what the copy holds.
    pub(super) fn insert(&self, page: Gfn, copy: HeldCopy<'_>) {
        // Who gives write permission to the page does it under the page lock that is held here.
        self.used.store(true, Relaxed);
        self.copies.lock().insert(page, copy.keep());
    }

    /// The copy of the page, if there is one. It is the caller's now.
    pub(super) fn take<'a>(&self, swap: &'a Swap, page: Gfn) -> Option<HeldCopy<'a>> {
        let entry = self.used.load(Relaxed).then(|| self.copies.lock().remove(&page)).flatten();
        entry.map(|entry| HeldCopy::new(swap, entry))
    }

    /// The pages are written to from now on, or have gone.
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
        if swap.sabotage == Sabotage::NoteWrites {
            return;
        }
        let mut copies = self.copies.lock();
        while let Some((&page, _)) = copies.range(pages.start..pages.end).next() {
            if let Some(entry) = copies.remove(&page) {
                swap.put(entry);
            }
        }
    }

    /// All of them go; whether there were any.
    pub(crate) fn clear(&self, swap: &Swap) -> bool {
        let copies = mem::take(&mut *self.copies.lock());
        for &entry in copies.values() {
            swap.put(entry);
        }
        !copies.is_empty()
    }
}
