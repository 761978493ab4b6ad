//! An upload writes chunks and makes a template of them.
//!
//! No other host may collect a chunk between its look-up and the moment in which a template names it. Therefore the
//! host registers an upload in the catalog before it looks up anything. An upload relies on two kinds of chunks. The
//! first are those of the templates in the catalog at its start, whose manifests stay known until it ends. The second
//! are those that it writes, whose names have its epoch. A collection that takes its host for dead removes the upload
//! from the catalog, and then it cannot become a template.

use super::catalog::{Active, Catalog, Edit, State};
use super::chunk::{Name, compress};
use super::lease::Pin;
use super::library::Library;
use super::manifest::{MOST_MANIFEST, Manifest};
use super::pack::PACKS;
use super::{Hash, StoreError, names};
use crate::compute_limit::ComputeLimit;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

/// An upload under way. Dropping it gives it up: the next collection deletes its objects.
pub(crate) struct Upload<'a> {
    library: &'a Library,
    id: String,
    epoch: u32,
    /// Known chunks of the store.
    known: Mutex<HashMap<Hash, Name>>,
    written: AtomicUsize,
    pin: Pin,
    is_over: bool,
}

impl<'a> Upload<'a> {
    /// Registers an upload that knows the chunks of all templates.
    pub fn begin(library: &'a Library) -> Result<Self, StoreError> {
        let (upload, state) = Self::registered(library)?;
        for manifest in state.templates.values() {
            match upload.library.manifest(manifest) {
                Ok(manifest) => {
                    let names = manifest.chunks.iter().flatten();
                    upload.known.lock().extend(names.map(|name| (name.hash, *name)));
                }
                Err(error) if error.may_pass() => return Err(error),
                // The upload does not rely on an unreadable manifest.
                Err(_) => {}
            }
        }
        Ok(upload)
    }

    /// Registers an upload that knows no chunks.
    pub fn register(library: &'a Library) -> Result<Self, StoreError> {
        Ok(Self::registered(library)?.0)
    }

    fn registered(library: &'a Library) -> Result<(Self, State), StoreError> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let pin = library.lease.pin("")?;
        let id = format!("{}.{}", library.lease.id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let state = Catalog(library.store.clone()).change(|state, _| {
            if state.uploads.contains_key(&id) {
                return Ok(Edit::Keep(state.clone()));
            }
            let (lease, began) = (library.lease.id(), state.change());
            state.uploads.insert(id.clone(), Active { lease, epoch: state.epoch, began });
            Ok(Edit::Write(state.clone()))
        })?;
        let upload = Self {
            library,
            id,
            epoch: state.epoch,
            known: Mutex::default(),
            written: AtomicUsize::new(0),
            pin,
            is_over: false,
        };
        Ok((upload, state))
    }

    /// Returns the number of new chunks, which were written.
    pub fn written(&self) -> usize {
        self.written.load(Ordering::Relaxed)
    }

    /// Returns the name of a chunk, and whether the caller must write it. `None`: zeros.
    fn name(&self, content: &[u8]) -> Option<(Name, bool)> {
        if content.iter().all(|byte| *byte == 0) {
            return None;
        }
        let hash = Hash::of(content);
        let (name, mut known) = (Name { hash, epoch: self.epoch }, self.known.lock());
        let there = known.get(&hash).copied();
        known.entry(hash).or_insert(name);
        Some((there.unwrap_or(name), there.is_none()))
    }

    fn write(&self, name: Name, content: &[u8]) -> Result<(), StoreError> {
        self.put(name, &compress(content))
    }

    fn put(&self, name: Name, compressed: &[u8]) -> Result<(), StoreError> {
        self.library.store.put(&name.key(), compressed)?;
        self.written.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Writes one chunk if it is new, and returns its name. Holds a compute permit only while it computes, not while it
    /// waits for the store.
    pub fn chunk(&self, content: &[u8], compute_limit: &ComputeLimit) -> Result<Option<Name>, StoreError> {
        let permit = compute_limit.acquire();
        let Some((name, is_new)) = self.name(content) else { return Ok(None) };
        if is_new {
            let compressed = compress(content);
            drop(permit);
            self.put(name, &compressed)?;
        }
        Ok(Some(name))
    }

    /// Writes the pages of an overlay as a chunk, and returns its name. They may be zeros.
    pub fn page_content(&self, content: &[u8]) -> Result<Name, StoreError> {
        let name = Name { hash: Hash::of(content), epoch: self.epoch };
        self.write(name, content)?;
        Ok(name)
    }

    /// Writes a pack of a working set, and returns its name.
    pub fn pack(&self, content: &[u8], compute_limit: &ComputeLimit) -> Result<Name, StoreError> {
        let permit = compute_limit.acquire();
        let (name, compressed) = (Name { hash: Hash::of(content), epoch: self.epoch }, compress(content));
        drop(permit);
        self.library.store.put(&format!("{PACKS}/{name}"), &compressed)?;
        Ok(name)
    }

    /// Writes the chunks of an image, several at a time. `next` returns the next bytes. `None`: zeros.
    pub fn image(
        &self,
        mut next: impl FnMut(usize) -> io::Result<Option<Vec<u8>>>,
        size: u64,
        chunk: usize,
        threads: usize,
    ) -> Result<Vec<Option<Name>>, StoreError> {
        let (mut names, mut left) = (Vec::new(), size);
        let failed = Mutex::new(None);
        let (send, work) = sync_channel::<(Name, Vec<u8>)>(threads);
        let work = Mutex::new(work);
        let write = || {
            loop {
                let Ok((name, content)) = work.lock().recv() else { return };
                if failed.lock().is_none()
                    && let Err(error) = self.write(name, &content)
                {
                    failed.lock().get_or_insert(error);
                }
            }
        };
        std::thread::scope(|scope| {
            // The writers end when it is dropped.
            let send = send;
            let mut writers = 0;
            while left > 0 && failed.lock().is_none() {
                let length = chunk.min(usize::try_from(left).unwrap_or(usize::MAX));
                let content =
                    next(length).map_err(|error| StoreError::Io { key: "the image".into(), error })?;
                left -= length as u64;
                let Some(content) = content else {
                    names.push(None);
                    continue;
                };
                let name = self.name(&content);
                names.push(name.map(|(name, _)| name));
                let Some((name, true)) = name else { continue };
                if threads <= 1 {
                    self.write(name, &content)?;
                    continue;
                }
                if writers < threads {
                    writers += usize::from(std::thread::Builder::new().spawn_scoped(scope, write).is_ok());
                }
                if writers == 0 {
                    self.write(name, &content)?;
                } else if send.send((name, content)).is_err() {
                    break;
                }
            }
            Ok(())
        })?;
        match failed.into_inner() {
            Some(error) => Err(error),
            None => Ok(names),
        }
    }

    /// Makes a template of it, or replaces one of that name. Hosts that serve the old one continue with it.
    ///
    /// # Errors
    /// [`StoreError::Busy`]: a collection gave it up, or other hosts changed the catalog again and again.
    pub fn publish(mut self, template: &str, manifest: &Manifest) -> Result<(), StoreError> {
        let text = manifest.print();
        // The name covers the whole manifest: two uploads of the same content may rely on chunks of different epochs,
        // and otherwise the later one would replace the other's manifest.
        let name = Name { hash: Hash::of(&text), epoch: self.epoch }.to_string();
        self.library.store.put(&format!("manifests/{name}"), &text)?;
        debug_assert!(text.len() <= MOST_MANIFEST);
        let change = Catalog(self.library.store.clone()).change(|state, _| {
            if state.uploads.remove(&self.id).is_none() {
                // An earlier try may have been written.
                return if state.templates.get(template) == Some(&name) {
                    Ok(Edit::Keep(state.serial))
                } else {
                    let what = "its upload took so long that a collection gave it up";
                    Err(StoreError::Busy(format!("templates/{template}: {what}")))
                };
            }
            state.set(template, Some(&name));
            Ok(Edit::Write(state.change()))
        })?;
        self.is_over = true;
        // The template is in the catalog, so a failure is none of the upload.
        _ = names::write(&*self.library.store, template, &name, change);
        Ok(())
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            // If the store is out of reach, a collection does it when the lease has ended.
            _ = Catalog(self.library.store.clone()).change(|state, _| {
                if state.uploads.remove(&self.id).is_none() {
                    return Ok(Edit::Keep(()));
                }
                state.forget_retired();
                Ok(Edit::Write(()))
            });
        }
        let _ = &self.pin;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Folder, PATIENCE};

    /// Returns whether an upload that relies on an older chunk changes the published manifest of another upload of the
    /// same content.
    fn is_replaced() -> bool {
        let folder = std::env::temp_dir().join(format!("slat-pager-upload-{}", std::process::id()));
        let library = |host| Library::new(Folder::open(&folder).unwrap()).numbered(host);
        let (one, other, image) = (library(1), library(2), [7; 4096]);
        one.snapshot("a", &image[..], 4096, 4096).unwrap();
        one.gc(PATIENCE).unwrap();
        let upload = Upload::begin(&one).unwrap();
        let chunks = vec![upload.chunk(&image, &ComputeLimit::default()).unwrap()];
        assert_eq!(upload.written(), 0, "it relies on the template that goes now");
        other.remove("a").unwrap();
        assert_eq!(other.snapshot("b", &image[..], 4096, 4096).unwrap().chunks, 1);
        let version = other.open("b").unwrap().version().to_owned();
        let before = other.manifest(&version).unwrap();
        upload
            .publish("c", &Manifest { size: 4096, chunk: 4096, chunks, machine: None, overlay: None })
            .unwrap();
        let is_replaced = other.manifest(&version).unwrap() != before;
        std::fs::remove_dir_all(&folder).unwrap();
        is_replaced
    }

    #[test]
    fn no_upload_changes_the_manifest_of_another() {
        assert!(!is_replaced());
    }
}
