//! A file: contents that several mappings, in one address space or in many, may share.
//!
//! It is its own page cache. A page comes into being when a thread first maps it, filled from the contents
//! that the file was made with, and stays as long as the file, or until it is [evicted](crate::swap::files). The file
//! holds one reference to each of its frames, so a frame of a file never has a sole owner in an address space: a private
//! mapping copies before it writes.

use crate::arena::Arena;
use crate::error::MmError;
use crate::held::Held;
use crate::swap::{Swap, SwapEntry};
use parking_lot::{Mutex, MutexGuard};
use slat::{Level, PAGE_SIZE, Pfn, Span};
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the module's header. Map it with [`Backing::Shared`](crate::Backing::Shared) or
/// [`Backing::Private`](crate::Backing::Private).
#[derive(Debug)]
pub struct File {
    arena: Arc<Arena>,
    contents: Vec<u8>,
    pages: u64,
    cache: Mutex<Cache>,
}

pub(crate) type Cache = BTreeMap<u64, Cached>;

/// Where a page is that came into being.
#[derive(Debug)]
pub(crate) enum Cached {
    /// In a frame, to which the file has a reference. A thread that takes another reference cancels `leaving`.
    Frame { pfn: Pfn, leaving: bool },
    /// In swap. The file has a reference to the copy.
    Swapped(Arc<Swap>, SwapEntry),
}

/// A page that was asked for.
#[derive(Debug)]
pub(crate) enum Page<'a> {
    /// A reference to it.
    There(Held<'a>),
    /// It has to be [read back](File::swap_in) first, by who may sleep.
    Swapped,
    /// The file ends before.
    PastEnd,
}

impl File {
    /// A file of zeroes, as a memfd is: `bytes` long, rounded up to pages. Costs nothing until it is used.
    pub fn zeroed(arena: &Arc<Arena>, bytes: u64) -> Arc<Self> {
        Self::new(arena, Vec::new(), bytes)
    }

    /// A file with these contents; zeroes follow to the end of its last page.
    pub fn with_contents(arena: &Arc<Arena>, contents: Vec<u8>) -> Arc<Self> {
        let bytes = contents.len() as u64;
        Self::new(arena, contents, bytes)
    }

    fn new(arena: &Arc<Arena>, contents: Vec<u8>, bytes: u64) -> Arc<Self> {
        let pages = bytes.div_ceil(PAGE_SIZE);
        Arc::new(Self { arena: arena.clone(), contents, pages, cache: Mutex::default() })
    }

    /// The arena that its pages live in.
    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Page `index`, brought in if need be.
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

    /// Its pages that came into being.
    pub(crate) fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock()
    }

    /// Whether page `index` is in the file: in its cache, or in what it was made with. `None` past the end.
    pub(crate) fn holds(&self, index: u64) -> Option<bool> {
        (index < self.pages).then(|| self.was_made_with(index) || self.cache.lock().contains_key(&index))
    }

    /// Whether the file was made with a page `index`.
    pub(crate) fn was_made_with(&self, index: u64) -> bool {
        index < (self.contents.len() as u64).div_ceil(PAGE_SIZE)
    }

    /// Makes `page` the file's page `index`, and returns a reference to it. `None` where there is one, or no room
    /// for one.
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

    /// What the file was made with, of page `index`; zeroes follow.
    pub(crate) fn made_with(&self, index: u64) -> &[u8] {
        let start = self.contents.len().min((index * PAGE_SIZE) as usize);
        let end = self.contents.len().min(start + PAGE_SIZE as usize);
        &self.contents[start..end]
    }

    fn read_in(&self, index: u64) -> Result<Held<'_>, MmError> {
        let page = self.arena.zeroed(Level::K4)?;
        let bytes = self.made_with(index);
        // SAFETY: a page that only we hold; the slice is no longer than it.
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
