//! A file: contents that several mappings, in one address space or in many, may share.
//!
//! It is its own page cache. A page comes into being when somebody first maps it, filled from the contents
//! that the file was made with, and stays as long as the file. The file holds one reference to each of its
//! frames, so a frame of a file never has a sole owner in an address space: a private mapping copies before it
//! writes.

use crate::arena::Arena;
use crate::error::MmError;
use crate::held::Held;
use parking_lot::Mutex;
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
    cache: Mutex<BTreeMap<u64, Pfn>>,
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

    /// A reference to page `index`, brought in if need be. `None` past the end.
    pub(crate) fn page(&self, index: u64) -> Result<Option<Held<'_>>, MmError> {
        if index >= self.pages {
            return Ok(None);
        }
        let mut cache = self.cache.lock();
        let pfn = match cache.get(&index) {
            Some(&pfn) => pfn,
            None => *cache.entry(index).or_insert(self.read_in(index)?.keep()),
        };
        self.arena.share(Span::sized(pfn, 1));
        Ok(Some(Held::new(&self.arena, pfn, Level::K4)))
    }

    /// Whether page `index` is in the file: in its cache, or in what it was made with. `None` past the end.
    pub(crate) fn holds(&self, index: u64) -> Option<bool> {
        let made = index < (self.contents.len() as u64).div_ceil(PAGE_SIZE);
        (index < self.pages).then(|| made || self.cache.lock().contains_key(&index))
    }

    /// Makes `page` the file's page `index`, and returns a reference to it. `None` where there is one, or no room
    /// for one.
    pub(crate) fn add<'a>(&self, index: u64, page: Held<'a>) -> Option<Held<'a>> {
        let mut cache = self.cache.lock();
        let made = index < (self.contents.len() as u64).div_ceil(PAGE_SIZE);
        if index >= self.pages || made || cache.contains_key(&index) {
            return None;
        }
        let pfn = page.pfn();
        self.arena.share(Span::sized(pfn, 1));
        cache.insert(index, pfn);
        Some(page)
    }

    fn read_in(&self, index: u64) -> Result<Held<'_>, MmError> {
        let page = self.arena.zeroed(Level::K4)?;
        let start = self.contents.len().min((index * PAGE_SIZE) as usize);
        let end = self.contents.len().min(start + PAGE_SIZE as usize);
        let bytes = &self.contents[start..end];
        // SAFETY: a page that only we hold; the slice is no longer than it.
        unsafe { self.arena.frame(page.pfn()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(page)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        for &pfn in self.cache.get_mut().values() {
            self.arena.put(Span::sized(pfn, 1));
        }
    }
}
