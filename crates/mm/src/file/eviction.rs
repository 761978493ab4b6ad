//! A page's way out of a file, and back in. A file is a page cache: several address spaces may map a page, so
//! the page leaves when the last of them has unmapped it.
//!
//! ```text
//! under the file's lock        two references, the file's and the caller's? ─▶ the page is leaving
//! no lock                      equal to the initial contents? ─▶ nothing to store; else store: may sleep, may fail
//! under the file's lock        still leaving? ─▶ dropped, or swapped
//! ```
//! A thread that maps the page takes a reference from the file, under the file's lock, and clears `leaving`. So
//! while a page is leaving, no thread can write to it.

use super::{Cached, File};
use crate::arena::Arena;
use crate::error::MmError;
use crate::swap::{HeldCopy, Swap, SwapError};
use slat::{Hva, Idle, Level, PAGE_SIZE, Pfn, Span};
use std::sync::Arc;

impl File {
    /// Whether `pfn` is the file's page `index`, and only the file and the caller have references.
    pub(crate) fn is_last(&self, index: u64, pfn: Pfn) -> bool {
        self.has(index, pfn) && self.arena().references(pfn) == 2
    }

    /// Whether `pfn` is the file's page `index`.
    pub(crate) fn has(&self, index: u64, pfn: Pfn) -> bool {
        matches!(self.cache().get(&index), Some(&Cached::Frame { pfn: found, .. }) if found == pfn)
    }

    /// Starts to evict page `index` in frame `pfn`; the caller has a reference to it, and no MMU maps it.
    /// Returns whether it must be stored; `None` if a thread wants it.
    pub(crate) fn begin_to_evict(&self, (index, pfn): (u64, Pfn)) -> Option<bool> {
        match self.cache().get_mut(&index) {
            Some(Cached::Frame { pfn: found, leaving })
                if *found == pfn && !*leaving && self.arena().references(pfn) == 2 =>
            {
                *leaving = true;
            }
            _ => return None,
        }
        Some(!(self.was_made_with(index) && holds(self.arena(), pfn, self.made_with(index))))
    }

    /// Finishes an eviction: replaces the page by this copy, or drops it. Returns false if a fault took the
    /// page back meanwhile.
    pub(crate) fn evict(
        &self,
        (index, pfn): (u64, Pfn),
        swap: Option<&Arc<Swap>>,
        copy: Result<Option<HeldCopy<'_>>, SwapError>,
    ) -> Result<bool, SwapError> {
        let mut cache = self.cache();
        let Some(Cached::Frame { leaving, .. }) = cache.get_mut(&index) else { return Ok(false) };
        if !std::mem::take(leaving) {
            return Ok(false);
        }
        match (copy?, swap) {
            (Some(copy), Some(swap)) => {
                cache.insert(index, Cached::Swapped(swap.clone(), copy.keep()));
            }
            _ => drop(cache.remove(&index)),
        }
        // The file's reference; the caller still has its own.
        self.arena().put(Span::sized(pfn, 1));
        Ok(true)
    }

    /// Reads page `index` back if it is in swap, for an access to `hva`. May sleep.
    pub(crate) fn swap_in(&self, _idle: &mut Idle, index: u64, hva: Hva) -> Result<(), MmError> {
        let (swap, entry) = match self.cache().get(&index) {
            Some(Cached::Swapped(swap, entry)) => {
                swap.hold(*entry).keep();
                (swap.clone(), *entry)
            }
            _ => return Ok(()),
        };
        let copy = HeldCopy::new(&swap, entry);
        let fresh = self.arena().page(Level::K4)?;
        swap.load(&copy, fresh.pfn()).map_err(|error| error.at(hva))?;
        let mut cache = self.cache();
        // The page may have been written and swapped out again meanwhile, as another copy.
        if let Some(Cached::Swapped(of, found)) = cache.get(&index)
            && (Arc::ptr_eq(of, &swap), *found) == (true, entry)
        {
            cache.insert(index, Cached::Frame { pfn: fresh.keep(), leaving: false });
            swap.put(entry);
        }
        Ok(())
    }
}

/// Whether the page, to which no thread writes, equals `made` followed by zeroes.
fn holds(arena: &Arena, pfn: Pfn, made: &[u8]) -> bool {
    // SAFETY: a frame of this arena that the caller may read; no thread writes to it.
    let bytes: &[u8; PAGE_SIZE as usize] = unsafe { &*arena.frame(pfn).cast() };
    let (start, rest) = bytes.split_at(made.len());
    start == made && rest.iter().all(|&byte| byte == 0)
}
