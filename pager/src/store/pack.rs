//! A packed working set: its pages in the order of their first touches, compressed together in objects of their own.
//!
//! A guest touches few pages of each chunk. Its replay would read and expand every chunk that has one of them. A pack has
//! only the pages of the working set, so a replay reads and expands what the guest needs.
//!
//! Format, version 1: the object `packs/HASH.EPOCH` has the form of a chunk. Its content is up to [`PACK`] pages. The
//! packs of a working set together have all pages of the set, in its order, without those in chunks of zeros. The set
//! lists the packs (see `working_set.rs`).
//!
//! A pack is made of chunks whose hashes were checked, and its own hash is checked when it is read. If it is missing,
//! damaged or out of reach, the chunks replace it.
//!
//! The upload of a pack is registered in the catalog, as that of a chunk, so that no collection deletes the pack before
//! the set names it. From then on the set protects it, and the lease of each process that opened the template with it.

use super::chunk::{self, Name};
use crate::cache::{Cache, Chunk};
use crate::uffd::PAGE;

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
