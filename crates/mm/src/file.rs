//! A file: contents that several mappings, in one address space or many, may share.
//!
//! A file is its own page cache. A page is created when a thread first maps it, filled with the file's initial
//! contents. It stays until the file is dropped or the page is [evicted](eviction). The file holds a
//! reference to each of its frames, so no address space is the sole owner of one: a private mapping copies
//! before it writes.

mod eviction;

use crate::arena::Arena;
use crate::error::MmError;
use crate::held::Held;
use crate::swap::{Swap, SwapEntry};
use parking_lot::{Mutex, MutexGuard};
use slat::{Level, PAGE_SIZE, Pfn, Span};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A file in memory. Map it with [`Backing::Shared`](crate::Backing::Shared) or
/// [`Backing::Private`](crate::Backing::Private).
#[derive(Debug)]
pub struct File {
    arena: Arc<Arena>,
    contents: Vec<u8>,
    pages: u64,
    cache: Mutex<Cache>,
}

pub(crate) type Cache = BTreeMap<u64, Cached>;

/// Place of a page in the cache.
#[derive(Debug)]
pub(crate) enum Cached {
    /// In a frame that the file holds a reference to. A thread that takes another reference clears `leaving`.
    Frame { pfn: Pfn, leaving: bool },
    /// In swap. The file holds a reference to the copy.
    Swapped(Arc<Swap>, SwapEntry),
}

/// Result of a lookup.
#[derive(Debug)]
pub(crate) enum Page<'a> {
    /// The page, with a reference.
    There(Held<'a>),
    /// The page must be [read back](File::swap_in) first, by a thread that may sleep.
    Swapped,
    /// The page is past the end of the file.
    PastEnd,
}

impl File {
    /// Creates a file of zeroes, like a memfd, `bytes` long rounded up to pages. Pages take no memory until
    /// they are used.
    pub fn zeroed(arena: &Arc<Arena>, bytes: u64) -> Arc<Self> {
        Self::new(arena, Vec::new(), bytes)
    }

    /// Creates a file with these contents, padded with zeroes to a whole page.
    pub fn with_contents(arena: &Arc<Arena>, contents: Vec<u8>) -> Arc<Self> {
        let bytes = contents.len() as u64;
        Self::new(arena, contents, bytes)
    }

    fn new(arena: &Arc<Arena>, contents: Vec<u8>, bytes: u64) -> Arc<Self> {
        let pages = bytes.div_ceil(PAGE_SIZE);
        Arc::new(Self { arena: arena.clone(), contents, pages, cache: Mutex::default() })
    }

    /// Returns the arena of its pages.
    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Returns page `index`, created if needed.
    pub(crate) fn page(&self, index: u64) -> Result<Page<'_>, MmError> {
        if index >= self.pages {
            return Ok(Page::PastEnd);
        }
        let mut cache = self.cache.lock();
        let pfn = match cache.get_mut(&index) {
            Some(Cached::Swapped(..)) => return Ok(Page::Swapped),
            Some(Cached::Frame { pfn, leaving }) => {
                *leaving = false;
                *pfn
            }
            None => {
                let pfn = self.read_in(index)?.keep();
                cache.insert(index, Cached::Frame { pfn, leaving: false });
                pfn
            }
        };
        self.arena.share(Span::sized(pfn, 1));
        Ok(Page::There(Held::new(&self.arena, pfn, Level::K4)))
    }

    /// Locks and returns the cache of created pages.
    pub(crate) fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock()
    }

    /// Whether page `index` is in the cache or in the initial contents. `None` past the end.
    pub(crate) fn holds(&self, index: u64) -> Option<bool> {
        (index < self.pages).then(|| self.was_made_with(index) || self.cache.lock().contains_key(&index))
    }

    /// Whether the initial contents reach page `index`.
    pub(crate) fn was_made_with(&self, index: u64) -> bool {
        index < (self.contents.len() as u64).div_ceil(PAGE_SIZE)
    }

    /// Makes `page` the file's page `index`, and returns a reference to it. `None` if that page exists or is
    /// past the end.
    pub(crate) fn add<'a>(&self, index: u64, page: Held<'a>) -> Option<Held<'a>> {
        let mut cache = self.cache.lock();
        if index >= self.pages || self.was_made_with(index) || cache.contains_key(&index) {
            return None;
        }
        let pfn = page.pfn();
        self.arena.share(Span::sized(pfn, 1));
        cache.insert(index, Cached::Frame { pfn, leaving: false });
        Some(page)
    }

    /// Returns the initial contents of page `index`, without the zeroes that follow.
    pub(crate) fn made_with(&self, index: u64) -> &[u8] {
        let start = self.contents.len().min((index * PAGE_SIZE) as usize);
        let end = self.contents.len().min(start + PAGE_SIZE as usize);
        &self.contents[start..end]
    }

    fn read_in(&self, index: u64) -> Result<Held<'_>, MmError> {
        let page = self.arena.zeroed(Level::K4)?;
        let bytes = self.made_with(index);
        // SAFETY: only this function holds the page, and the slice fits.
        unsafe { self.arena.frame(page.pfn()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(page)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        for page in self.cache.get_mut().values() {
            match page {
                Cached::Frame { pfn, .. } => self.arena.put(Span::sized(*pfn, 1)),
                Cached::Swapped(swap, entry) => swap.put(*entry),
            }
        }
    }
}
