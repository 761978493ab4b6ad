//! A packed working set: its pages in the order of their first touches, compressed together in objects of their own.
//!
//! A guest touches few pages of each chunk. Its replay would read and expand every chunk that has one of them. A pack has
//! only the pages of the working set, so a replay reads and expands what the guest needs.
//!
//! Format, version 1: the object `packs/HASH.EPOCH` has the form of a chunk. Its content is up to [`PACK`] pages. The
//! packs of a working set together have all pages of the set, in its order, without those in chunks of zeros. The set
//! lists the packs (see [`WorkingSet`]).
//!
//! A pack is made of chunks whose hashes were checked, and its own hash is checked when it is read. If it is missing,
//! damaged or out of reach, the chunks replace it.
//!
//! The upload of a pack is registered in the catalog, as that of a chunk, so that no collection deletes the pack before
//! the set names it. From then on the set protects it, and the lease of each process that opened the template with it.

use super::chunk::{self, Name};
use super::upload::Upload;
use super::{StoreError, Template, WorkingSet};
use crate::cache::{Cache, Chunk, Source};
use crate::compute_limit::ComputeLimit;
use crate::uffd::PAGE;
use std::ops::Range;

/// Kind of these objects.
pub(crate) const PACKS: &str = "packs";
/// Most pages of a pack that this version writes, and that it reads.
pub(crate) const PACK: usize = 256;
pub(crate) const MOST_PACK: usize = chunk::MOST_CHUNK / PAGE;

/// A pack of a working set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pack {
    pub name: Name,
    pub pages: usize,
}

impl Pack {
    /// Returns its key.
    pub fn key(&self) -> String {
        format!("{PACKS}/{}", self.name)
    }

    /// Returns its content if it is cached.
    pub fn look(&self, cache: &Cache) -> Option<Chunk> {
        cache.look(&self.name.hash).filter(|content| content.len() == self.pages * PAGE)
    }
}

impl Template {
    /// Returns the pages that the packs of a working set have, in their order. Each range is in one chunk.
    pub(crate) fn packed(&self, set: &WorkingSet) -> Vec<Range<usize>> {
        let (mut ranges, end) = (Vec::new(), (self.size() / PAGE as u64) as usize);
        for run in set.runs() {
            let mut run = run.start.min(end)..run.end.min(end);
            while !run.is_empty() {
                let part = run.start..run.end.min(self.chunk_of(run.start).end);
                run.start = part.end;
                if !self.is_zero(part.start) {
                    ranges.push(part);
                }
            }
        }
        ranges
    }

    /// Returns the content of a pack, through the cache. May sleep.
    pub(crate) fn pack(
        &self,
        pack: &Pack,
        cache: &Cache,
        compute_limit: Option<&ComputeLimit>,
    ) -> Result<(Chunk, Source), StoreError> {
        let library = self.library().ok_or_else(|| StoreError::Missing(pack.key()))?;
        let length = pack.pages * PAGE;
        let read = || chunk::read(&*library.store, &pack.key(), pack.name, length, compute_limit);
        let found = cache.get(pack.name.hash, read)?;
        // The same content may be cached as a chunk; its length follows from its hash.
        debug_assert_eq!(found.0.len(), length);
        Ok(found)
    }

    /// As [`Template::keep_working_set`], with packs of its pages in the store. `cache` may have some of its chunks.
    ///
    /// # Errors
    /// As of [`Template::keep_working_set`]. If a chunk cannot be read and a retry does not help, the set has no packs.
    pub(crate) fn keep_packed(
        &self,
        set: &WorkingSet,
        cache: &Cache,
        compute_limit: &ComputeLimit,
    ) -> Result<(), StoreError> {
        let Some(library) = self.library() else { return self.keep_working_set(set.clone()) };
        let upload = Upload::register(library)?;
        match self.write_packs(&upload, set, cache, compute_limit) {
            Ok(packs) => self.keep_working_set(set.clone().with_packs(packs)),
            Err(error) if error.may_pass() => Err(error),
            Err(_) => self.keep_working_set(set.clone()),
        }
        // The upload ends here, when the set protects its packs.
    }

    fn write_packs(
        &self,
        upload: &Upload,
        set: &WorkingSet,
        cache: &Cache,
        compute_limit: &ComputeLimit,
    ) -> Result<Vec<Pack>, StoreError> {
        let (mut packs, mut content) = (Vec::new(), Vec::with_capacity(PACK * PAGE));
        let mut write = |content: &mut Vec<u8>| {
            let name = upload.pack(content, compute_limit)?;
            packs.push(Pack { name, pages: content.len() / PAGE });
            content.clear();
            Ok::<_, StoreError>(())
        };
        for pages in self.packed(set) {
            let first = self.chunk_of(pages.start).start;
            let Some((chunk, _)) = self.content(pages.start, cache, Some(compute_limit))? else { continue };
            for page in pages {
                content.extend_from_slice(&chunk[(page - first) * PAGE..][..PAGE]);
                if content.len() == PACK * PAGE {
                    write(&mut content)?;
                }
            }
        }
        if !content.is_empty() {
            write(&mut content)?;
        }
        Ok(packs)
    }
}
