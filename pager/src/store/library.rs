//! Makes, opens, verifies, lists and removes the templates of a store.

use super::catalog::{Catalog, Edit};
use super::chunk::Name;
use super::lease::Lease;
use super::manifest::{MOST_MANIFEST, Machine, Manifest};
use super::template::working_set_key;
use super::upload::Upload;
use super::working_set::MOST_WORKING_SET;
use super::{Hash, ImageFile, Store, StoreError, Template, WorkingSet, is_name, template};
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::sync::Arc;

/// Default number of chunks that a snapshot writes, or a collection deletes, at the same time.
const WRITERS: usize = 16;

/// The templates of a store.
#[derive(Clone)]
pub struct Library {
    pub(super) store: Arc<dyn Store>,
    pub(super) lease: Lease,
    pub(super) writers: usize,
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
        Self { lease: Lease::new(store.clone()), store, writers: WRITERS }
    }

    /// Sets the number of chunks that a snapshot writes, or a collection deletes, at the same time.
    #[must_use]
    pub fn writers(self, writers: usize) -> Self {
        Self { writers, ..self }
    }

    /// Sets the number of its lease, so that a test makes the same calls each time.
    #[doc(hidden)]
    pub fn numbered(self, number: u128) -> Self {
        Self { lease: Lease::named(self.store.clone(), number), ..self }
    }

    /// Makes a template of the `size` bytes that `image` reads, in chunks of `chunk` bytes. Chunks that a template of
    /// the store already has are not written again. The template appears when all of its chunks are written. It
    /// replaces one of the same name; guests of the old one keep it.
    ///
    /// # Errors
    /// [`StoreError::Size`], [`StoreError::Name`], an error of the store, or [`StoreError::Busy`] if a collection gave
    /// up this upload. A template of that name is unchanged then.
    pub fn snapshot(
        &self,
        name: &str,
        image: impl Read,
        size: u64,
        chunk: usize,
    ) -> Result<Verified, StoreError> {
        self.keep(name, image, size, chunk, None)
    }

    /// As [`Library::snapshot`], of a file or a block device. Holes of a file are not read.
    ///
    /// # Errors
    /// As of [`Library::snapshot`].
    pub fn snapshot_file(
        &self,
        name: &str,
        mut image: ImageFile,
        chunk: usize,
    ) -> Result<Verified, StoreError> {
        let (size, mut at) = (image.size(), 0);
        let next = |length: usize| {
            let part = image.part(at, length);
            at += length as u64;
            part
        };
        self.keep_parts(name, next, size, chunk, None)
    }

    /// As [`Library::snapshot`]. `machine` has the parts of an image that is a whole machine.
    pub(crate) fn keep(
        &self,
        name: &str,
        mut image: impl Read,
        size: u64,
        chunk: usize,
        machine: Option<Machine>,
    ) -> Result<Verified, StoreError> {
        let next = |length| {
            let mut content = vec![0; length];
            image.read_exact(&mut content).map(|()| Some(content))
        };
        self.keep_parts(name, next, size, chunk, machine)
    }

    /// Makes a template of the parts that `next` returns. `None`: zeros.
    fn keep_parts(
        &self,
        name: &str,
        next: impl FnMut(usize) -> io::Result<Option<Vec<u8>>>,
        size: u64,
        chunk: usize,
        machine: Option<Machine>,
    ) -> Result<Verified, StoreError> {
        Manifest::check(size, chunk)?;
        check_name(name)?;
        let upload = Upload::begin(self)?;
        let chunks = upload.image(next, size, chunk, self.writers)?;
        let written = upload.written();
        upload.publish(name, &Manifest { size, chunk, chunks, machine })?;
        Ok(Verified { chunks: written, damaged: Vec::new() })
    }

    /// Opens a template. Its chunks stay in the store while it is open, even if it is replaced or removed.
    pub fn open(&self, name: &str) -> Result<Template, StoreError> {
        check_name(name)?;
        let missing = || StoreError::Missing(format!("templates/{name}"));
        let catalog = Catalog(self.store.clone());
        let mut found = catalog.read()?.templates.remove(name).ok_or_else(missing)?;
        loop {
            // Write the pin first, then check the catalog; a collection does it in the opposite order.
            let pin = self.lease.pin(&found)?;
            let now = catalog.read()?.templates.remove(name).ok_or_else(missing)?;
            if now != found {
                found = now;
                continue;
            }
            let manifest = self.manifest(&found)?;
            // A damaged working set counts as none: it has no effect on content.
            let set = match self.working_set(name, &manifest) {
                Err(error) if error.may_pass() => return Err(error),
                set => set.ok().flatten(),
            };
            return Ok(Template::new(name, &found, manifest, self.clone(), set, pin));
        }
    }

    /// Opens an earlier version of a template. This succeeds while a lease pins that version.
    pub(super) fn open_version(&self, name: &str, version: &str) -> Result<Template, StoreError> {
        check_name(name)?;
        if Name::parse(version).is_none() {
            return Err(StoreError::Name(version.into()));
        }
        let pin = self.lease.pin(version)?;
        let manifest = self.manifest(version)?;
        let template = Template::new(name, version, manifest, self.clone(), None, pin);
        // A record of it would replace that of the current version.
        template.record_none();
        Ok(template)
    }

    /// Reads and checks every chunk of a template, and its working set.
    pub fn verify(&self, name: &str) -> Result<Verified, StoreError> {
        let template = self.open(name)?;
        let (mut seen, mut damaged) = (BTreeSet::<Hash>::new(), Vec::new());
        let pages = template.chunk_size() / crate::uffd::PAGE;
        for index in 0..template.chunks().len() {
            let Some(chunk) = template.chunk_name(index).filter(|name| seen.insert(name.hash)) else {
                continue;
            };
            let length = template.chunk_of(index * pages).len() * crate::uffd::PAGE;
            match template::read(&*self.store, chunk, length, None) {
                Ok(_) => {}
                Err(error) if error.may_pass() => return Err(error),
                Err(error) => damaged.push(format!("chunk {index} of {name}: {error}")),
            }
        }
        match self.working_set(name, &self.manifest(template.version())?) {
            Err(error) if error.may_pass() => return Err(error),
            set => damaged.extend(set.err().map(|error| error.to_string())),
        }
        Ok(Verified { chunks: seen.len(), damaged })
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
        self.store.delete(&working_set_key(name))
    }

    /// Removes the working set of a template, so that the next guest is recorded. Processes that serve the template
    /// keep the old one.
    pub fn forget(&self, name: &str) -> Result<(), StoreError> {
        check_name(name)?;
        self.store.delete(&working_set_key(name))
    }

    fn working_set(&self, name: &str, manifest: &Manifest) -> Result<Option<WorkingSet>, StoreError> {
        let key = working_set_key(name);
        match self.store.get(&key, MOST_WORKING_SET) {
            Err(StoreError::Missing(_)) => Ok(None),
            bytes => WorkingSet::parse(&key, manifest.identity(), &bytes?),
        }
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
