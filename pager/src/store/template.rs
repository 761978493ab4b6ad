//! A template that is being served: where the content of each of its pages is.

use super::manifest::Manifest;
use super::{Guard, Hash, Store, StoreError, chunk};
use crate::cache::{Cache, Chunk, Source};
use crate::sabotage::Sabotage;
use crate::uffd::PAGE;
use std::ops::Range;
use std::sync::Arc;

/// A snapshot template, open. It stays in the store while one is.
#[derive(Clone)]
pub struct Template(Arc<Inner>);

struct Inner {
    name: String,
    manifest: Manifest,
    store: Arc<dyn Store>,
    sabotage: Option<Sabotage>,
    _lock: Guard,
}

impl Template {
    pub(super) fn new(
        name: String,
        manifest: Manifest,
        store: Arc<dyn Store>,
        lock: Guard,
        sabotage: Option<Sabotage>,
    ) -> Self {
        Self(Arc::new(Inner { name, manifest, store, sabotage, _lock: lock }))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Bytes of its image.
    pub fn size(&self) -> u64 {
        self.0.manifest.size
    }

    /// Bytes of a chunk; the last one may be shorter.
    pub fn chunk_size(&self) -> usize {
        self.0.manifest.chunk
    }

    /// Its chunks: `None` is one of zeros.
    pub fn chunks(&self) -> &[Option<Hash>] {
        &self.0.manifest.chunks
    }

    /// The pages of the chunk that holds a page.
    pub(crate) fn chunk_of(&self, page: usize) -> Range<usize> {
        let (pages, all) = (self.0.manifest.chunk / PAGE, (self.size() / PAGE as u64) as usize);
        let first = page / pages * pages;
        first..(first + pages).min(all)
    }

    /// The content of the chunk that holds a page, by way of the cache. `None`: zeros. It may sleep.
    pub(crate) fn content(&self, page: usize, cache: &Cache) -> Result<Option<(Chunk, Source)>, StoreError> {
        let Inner { manifest, store, sabotage, .. } = &*self.0;
        let pages = self.chunk_of(page);
        let mut index = pages.start * PAGE / manifest.chunk;
        // Another chunk of the same length, where there is one.
        if *sabotage == Some(Sabotage::Chunk) && index + 2 < manifest.chunks.len() {
            index += 1;
        }
        let Some(name) = manifest.chunks[index] else { return Ok(None) };
        let length = pages.len() * PAGE;
        let check = *sabotage != Some(Sabotage::Checksum);
        cache.get(name, || self::read(&**store, name, length, check)).map(Some)
    }
}

/// Reads a chunk, and checks it.
pub(super) fn read(store: &dyn Store, name: Hash, length: usize, check: bool) -> Result<Vec<u8>, StoreError> {
    chunk::expand(name, &store.get(&name.key(), chunk::MOST_STORED)?, length, check)
}
