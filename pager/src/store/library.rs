//! The templates of a store: made, opened, verified, listed, removed.

use super::manifest::{MOST_MANIFEST, Manifest};
use super::template::working_set_key;
use super::working_set::MOST_WORKING_SET;
use super::{Hash, Store, StoreError, Template, WorkingSet, chunk, is_name, template};
use crate::sabotage::Sabotage;
use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;

/// What the chunks of a store are locked by: shared while some are added, exclusive while some are collected.
const CHUNKS: &str = "chunks";

/// The templates of a store.
#[derive(Clone)]
pub struct Library {
    store: Arc<dyn Store>,
    sabotage: Option<Sabotage>,
}

/// What [`Library::verify`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Chunks that were read, each once.
    pub chunks: usize,
    /// What is wrong, one line for each chunk.
    pub damaged: Vec<String>,
}

/// What [`Library::gc`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gc {
    /// Chunks that a template needs.
    pub kept: usize,
    /// Chunks that none needed, and that are gone.
    pub removed: usize,
}

impl Library {
    /// The templates of this store.
    pub fn new(store: impl Store + 'static) -> Self {
        Self { store: Arc::new(store), sabotage: None }
    }

    #[doc(hidden)]
    pub fn sabotage(self, sabotage: Option<Sabotage>) -> Self {
        Self { sabotage, ..self }
    }

    /// Makes a template of an image: of the `size` bytes that `image` reads, in chunks of `chunk` bytes. Chunks that the store has
    /// are not written again. The template is there when all of its chunks are; one of that name is replaced.
    ///
    /// # Errors
    /// [`StoreError::Size`], [`StoreError::Name`], [`StoreError::Busy`] while chunks are collected or the template is served, or
    /// what the store says. A template of that name is untouched then.
    pub fn snapshot(
        &self,
        name: &str,
        mut image: impl Read,
        size: u64,
        chunk: usize,
    ) -> Result<Verified, StoreError> {
        Manifest::check(size, chunk)?;
        let key = key(name)?;
        let busy = |key: &str| StoreError::Busy(key.into());
        let _adding = self.store.lock(CHUNKS, false)?.ok_or_else(|| busy(CHUNKS))?;
        let _replacing = self.store.lock(&key, true)?.ok_or_else(|| busy(&key))?;
        let (mut chunks, mut buffer, mut left, mut written) = (Vec::new(), vec![0; chunk], size, 0);
        while left > 0 {
            let content = &mut buffer[..chunk.min(left as usize)];
            image.read_exact(content).map_err(|error| StoreError::Io { key: key.clone(), error })?;
            left -= content.len() as u64;
            let is_zero = content.iter().all(|byte| *byte == 0);
            let name = (!is_zero).then(|| Hash::of(content));
            if let Some(name) = name
                && !self.store.has(&name.key())?
            {
                self.store.put(&name.key(), &chunk::compress(content))?;
                written += 1;
            }
            chunks.push(name);
        }
        self.store.put(&key, &Manifest { size, chunk, chunks }.print())?;
        Ok(Verified { chunks: written, damaged: Vec::new() })
    }

    /// Opens a template. While it is open it can be neither replaced nor removed.
    pub fn open(&self, name: &str) -> Result<Template, StoreError> {
        let key = key(name)?;
        let lock = self.store.lock(&key, false)?.ok_or_else(|| StoreError::Busy(key.clone()))?;
        let manifest = self.manifest(name)?;
        // One that is damaged is none: it says nothing about content.
        let set = match self.working_set(name, &manifest) {
            Err(error) if error.may_pass() => return Err(error),
            set => set.ok().flatten(),
        };
        Ok(Template::new(name.into(), manifest, self.store.clone(), set, lock, self.sabotage))
    }

    /// Reads every chunk of a template and its working set, and checks them.
    pub fn verify(&self, name: &str) -> Result<Verified, StoreError> {
        let template = self.open(name)?;
        let (mut seen, mut damaged) = (BTreeSet::new(), Vec::new());
        let pages = template.chunk_size() / crate::uffd::PAGE;
        for (index, hash) in template.chunks().iter().enumerate() {
            let Some(hash) = hash.filter(|hash| seen.insert(*hash)) else { continue };
            let length = template.chunk_of(index * pages).len() * crate::uffd::PAGE;
            match template::read(&*self.store, hash, length, true, None) {
                Ok(_) => {}
                Err(error) if error.may_pass() => return Err(error),
                Err(error) => damaged.push(format!("chunk {index} of {name}: {error}")),
            }
        }
        match self.working_set(name, &self.manifest(name)?) {
            Err(error) if error.may_pass() => return Err(error),
            set => damaged.extend(set.err().map(|error| error.to_string())),
        }
        Ok(Verified { chunks: seen.len(), damaged })
    }

    /// The names of all templates, sorted.
    pub fn list(&self) -> Result<Vec<String>, StoreError> {
        self.store.list("templates")
    }

    /// Removes a template. Its chunks go with the next [`Library::gc`].
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        let key = key(name)?;
        let _lock = self.store.lock(&key, true)?.ok_or_else(|| StoreError::Busy(key.clone()))?;
        if !self.store.has(&key)? {
            return Err(StoreError::Missing(key));
        }
        self.store.delete(&working_set_key(name))?;
        self.store.delete(&key)
    }

    /// Removes the working set of a template, so that one is recorded anew. Who serves the template already does not notice.
    pub fn forget(&self, name: &str) -> Result<(), StoreError> {
        key(name)?;
        self.store.delete(&working_set_key(name))
    }

    /// Deletes the chunks that no template needs. A manifest that cannot be read stops it before the first one.
    pub fn gc(&self) -> Result<Gc, StoreError> {
        let _lock = self.store.lock(CHUNKS, true)?.ok_or_else(|| StoreError::Busy(CHUNKS.into()))?;
        let mut needed = BTreeSet::new();
        for name in self.list()? {
            needed.extend(self.manifest(&name)?.chunks.iter().flatten().map(ToString::to_string));
        }
        let (kept, rest): (Vec<_>, Vec<_>) =
            self.store.list(CHUNKS)?.into_iter().partition(|name| needed.contains(name));
        rest.iter().try_for_each(|name| self.store.delete(&format!("{CHUNKS}/{name}")))?;
        Ok(Gc { kept: kept.len(), removed: rest.len() })
    }

    fn working_set(&self, name: &str, manifest: &Manifest) -> Result<Option<WorkingSet>, StoreError> {
        let key = working_set_key(name);
        match self.store.get(&key, MOST_WORKING_SET) {
            Err(StoreError::Missing(_)) => Ok(None),
            bytes => WorkingSet::parse(&key, manifest.identity(), &bytes?),
        }
    }

    fn manifest(&self, name: &str) -> Result<Manifest, StoreError> {
        let key = key(name)?;
        Manifest::parse(&key, &self.store.get(&key, MOST_MANIFEST)?)
    }
}

fn key(name: &str) -> Result<String, StoreError> {
    if is_name(name) { Ok(format!("templates/{name}")) } else { Err(StoreError::Name(name.into())) }
}
