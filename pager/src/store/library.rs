//! The templates of a store: lists and removes them. Other files make, open and collect them.

use super::catalog::{Catalog, Edit};
use super::chunk::{self, MOST_STORED, Name};
use super::disk::Disk;
use super::lease::{Lease, LeaseStats};
use super::losses::{Losses, TemplateLoss};
use super::manifest::{MOST_MANIFEST, Manifest};
use super::{Store, StoreError, is_name, names, working_set};
use crate::compute_limit::ComputeLimit;
use std::sync::Arc;

/// Default number of chunks that a snapshot writes, or a collection deletes, at the same time.
const WRITERS: usize = 16;

/// The templates of a store.
#[derive(Clone)]
pub struct Library {
    pub(super) store: Arc<dyn Store>,
    pub(super) lease: Lease,
    pub(super) writers: usize,
    pub(super) losses: Losses,
    disk: Option<Disk>,
}

/// Result of [`Library::verify`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Number of different chunks that were read.
    pub chunks: usize,
    /// Errors, one line for each chunk.
    pub damaged: Vec<String>,
}

impl Library {
    /// Makes the library of this store.
    pub fn new(store: impl Store + 'static) -> Self {
        let store: Arc<dyn Store> = Arc::new(store);
        let (lease, losses) = (Lease::new(store.clone()), Losses::default());
        Self { lease, store, writers: WRITERS, losses, disk: None }
    }

    /// Sets the number of chunks that a snapshot writes, or a collection deletes, at the same time.
    #[must_use]
    pub fn writers(self, writers: usize) -> Self {
        Self { writers, ..self }
    }

    /// Keeps the chunks that it reads on a disk of this host.
    #[must_use]
    pub fn on_disk(self, disk: Disk) -> Self {
        Self { disk: Some(disk), ..self }
    }

    /// Sets the number of its lease, so that a test makes the same calls each time.
    #[doc(hidden)]
    pub fn numbered(self, number: u128) -> Self {
        Self { lease: Lease::named(self.store.clone(), number), ..self }
    }

    /// Returns the names of all templates, sorted.
    pub fn list(&self) -> Result<Vec<String>, StoreError> {
        Ok(Catalog(self.store.clone()).read()?.templates.into_keys().collect())
    }

    /// Removes a template. A later [`Library::gc`] deletes its chunks, when no host serves it any more.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        check_name(name)?;
        Catalog(self.store.clone()).change(|state, maybe| {
            if !state.templates.contains_key(name) {
                let missing = StoreError::Missing(format!("templates/{name}"));
                return if maybe { Ok(Edit::Keep(())) } else { Err(missing) };
            }
            state.set(name, None);
            Ok(Edit::Write(()))
        })?;
        self.store.delete(&working_set::key(name))?;
        names::delete(&*self.store, name)
    }

    /// Removes the working set of a template, so that the next guest is recorded. Processes that serve the template
    /// keep the old one.
    pub fn forget(&self, name: &str) -> Result<(), StoreError> {
        check_name(name)?;
        self.store.delete(&working_set::key(name))
    }

    /// Returns the templates of which chunks were missing or damaged when a guest of this process needed them.
    pub fn losses(&self) -> Vec<TemplateLoss> {
        self.losses.all()
    }

    /// Returns the state of its lease.
    pub fn lease(&self) -> LeaseStats {
        self.lease.stats()
    }

    /// Reads the chunk or pack with this key, and checks it. A thread that works ahead of faults passes a
    /// `compute_limit`.
    pub(super) fn chunk(
        &self,
        key: &str,
        name: Name,
        length: usize,
        compute_limit: Option<&ComputeLimit>,
    ) -> Result<Vec<u8>, StoreError> {
        let expand = |stored: &[u8]| {
            let _permit = compute_limit.map(ComputeLimit::acquire);
            chunk::expand(key, name.hash, stored, length)
        };
        if let Some(content) = self.disk.as_ref().and_then(|disk| disk.get(&name.hash, expand)) {
            return Ok(content);
        }
        let stored = self.store.get(key, MOST_STORED)?;
        let content = expand(&stored)?;
        if let Some(disk) = &self.disk {
            disk.put(name.hash, stored);
        }
        Ok(content)
    }

    /// Reads the manifest of this name.
    pub(super) fn manifest(&self, name: &str) -> Result<Manifest, StoreError> {
        let key = format!("manifests/{name}");
        Manifest::parse(&key, &self.store.get(&key, MOST_MANIFEST)?)
    }
}

pub(super) fn check_name(name: &str) -> Result<(), StoreError> {
    if is_name(name) { Ok(()) } else { Err(StoreError::Name(name.into())) }
}
