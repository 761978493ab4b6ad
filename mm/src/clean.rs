//! Pages of an address space not written since the last clear ([`crate::soft_dirty`]).

use parking_lot::Mutex;
use slat::{Gfn, Level, Span};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A bit for each page of a region of 2 MiB.
type Bits = [u64; Level::M2.pages() as usize / 64];

/// The clean pages of an address space. A region's bits change under its page lock.
#[derive(Debug, Default)]
pub(crate) struct Clean {
    /// Whether `regions` was ever filled. Until then each grant of write permission costs one load here.
    used: AtomicBool,
    regions: Mutex<BTreeMap<Gfn, Bits>>,
}

impl Clean {
    pub(crate) fn insert(&self, pages: Span<Gfn>) {
        // A fault that grants write permission to one of these pages holds the same page lock as this caller.
        self.used.store(true, Relaxed);
        let mut regions = self.regions.lock();
        for page in (pages.start.0..pages.end.0).map(Gfn) {
            let (word, bit) = place(page);
            regions.entry(page.base(Level::M2)).or_default()[word] |= bit;
        }
    }

    /// Removes pages that are written to from now on, or gone.
    #[inline]
    pub(crate) fn remove(&self, pages: Span<Gfn>) {
        if self.used.load(Relaxed) {
            self.remove_used(pages);
        }
    }

    #[cold]
    fn remove_used(&self, pages: Span<Gfn>) {
        let mut regions = self.regions.lock();
        for (&region, bits) in regions.range_mut(pages.start.base(Level::M2)..pages.end) {
            let part = Span::sized(region, Level::M2.pages()).clamp(&pages);
            for page in (part.start.0..part.end.0).map(Gfn) {
                let (word, bit) = place(page);
                bits[word] &= !bit;
            }
        }
    }

    pub(crate) fn contains(&self, page: Gfn) -> bool {
        let (word, bit) = place(page);
        self.regions.lock().get(&page.base(Level::M2)).is_some_and(|bits| bits[word] & bit != 0)
    }
}

fn place(page: Gfn) -> (usize, u64) {
    let index = page.0 - page.base(Level::M2).0;
    (index as usize / 64, 1 << (index % 64))
}
