//! An open template: finds the content of each of its pages.

use super::chunk::Name;
use super::lease::Pin;
use super::manifest::{Machine, Manifest};
use super::overlay::Overlay;
use super::{Hash, ImageFile, Library, Nbd, StoreError, WorkingSet, working_set};
use crate::cache::{Cache, Chunk, Source};
use crate::compute_limit::ComputeLimit;
use crate::uffd::PAGE;
use parking_lot::Mutex;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The content of a chunk, and its source. `None`: zeros.
pub(crate) type Found = Option<(Chunk, Source)>;

/// The initial memory of guests, open: a snapshot template, which stays in its store while it is open, or an image.
#[derive(Clone)]
pub struct Template(Arc<Inner>);

struct Inner {
    name: String,
    size: u64,
    chunk: usize,
    content: Content,
    /// The working set for later guests, and the pin of its packs.
    set: Mutex<(Option<WorkingSet>, Option<Pin>)>,
    /// A guest is being recorded.
    recording: AtomicBool,
}

enum Content {
    Chunks {
        chunks: Vec<Option<Hash>>,
        /// Epochs in which the chunks were written.
        epochs: Vec<u32>,
        library: Library,
        identity: Hash,
        /// Name of its manifest.
        version: String,
        machine: Option<Machine>,
        _pin: Pin,
    },
    /// An image on this host. The kernel's page cache has its content, so the cache of chunks does not.
    File(ImageFile),
    /// An image on a server, and the name of its pieces in the cache.
    Nbd(Nbd, String),
    /// Another template, the base, and pages that replace some of its pages. The base's pin is that of the overlay.
    Overlaid { base: Template, overlay: Overlay, version: String },
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Content::Chunks { library, version, .. } = &self.content {
            library.losses.closes(&self.name, version);
        }
    }
}

/// Bytes of a chunk of an image: a unit of shared memory and of NBD reads.
const IMAGE_CHUNK: usize = 256 << 10;

impl Template {
    pub(super) fn new(name: &str, version: &str, manifest: Manifest, library: Library, pin: Pin) -> Self {
        let identity = manifest.identity();
        let Manifest { size, chunk, chunks: names, machine, .. } = manifest;
        let chunks = names.iter().map(|name| name.map(|name| name.hash)).collect();
        let epochs = names.iter().map(|name| name.map_or(0, |name| name.epoch)).collect();
        let version = version.into();
        let content = Content::Chunks { chunks, epochs, library, identity, version, machine, _pin: pin };
        Self::with(name.into(), size, chunk, content)
    }

    pub(super) fn overlaid(name: &str, version: &str, base: Self, overlay: Overlay) -> Self {
        let (size, chunk, version) = (base.size(), base.chunk_size(), version.into());
        Self::with(name.into(), size, chunk, Content::Overlaid { base, overlay, version })
    }

    /// Opens an image of guest memory in whole pages, a file or a block device: without a store, and without a check of
    /// its content. It must not change.
    pub fn of_image(path: &Path) -> Result<Self, StoreError> {
        let image = ImageFile::open(path)?;
        let (name, size) = (image.name().to_owned(), image.size());
        Manifest::check(size, IMAGE_CHUNK)?;
        Ok(Self::with(name, size, IMAGE_CHUNK, Content::File(image)))
    }

    /// Opens an image of guest memory in whole pages on an NBD server: `nbd://HOST:PORT/EXPORT`, or
    /// `nbd+unix:///EXPORT?socket=PATH`. It must not change.
    pub fn of_nbd(address: &str) -> Result<Self, StoreError> {
        let nbd = Nbd::open(address).map_err(|error| StoreError::Io { key: address.into(), error })?;
        // An address may exceed the limit of messages between keeper and worker.
        let known = format!("nbd:{}", Hash::of(address.as_bytes()));
        let size = nbd.size();
        Manifest::check(size, IMAGE_CHUNK)?;
        Ok(Self::with(address.into(), size, IMAGE_CHUNK, Content::Nbd(nbd, known)))
    }

    fn with(name: String, size: u64, chunk: usize, content: Content) -> Self {
        let (set, recording) = (Mutex::default(), AtomicBool::new(false));
        Self(Arc::new(Inner { name, size, chunk, content, set, recording }))
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the bytes of its image.
    pub fn size(&self) -> u64 {
        self.0.size
    }

    /// Returns the bytes of a chunk; the last chunk may be shorter.
    pub fn chunk_size(&self) -> usize {
        self.0.chunk
    }

    /// Returns the template below an overlay, or itself. Its content is the same in all pages that are not
    /// [covered](Self::covers).
    pub(crate) fn base(&self) -> &Self {
        if let Content::Overlaid { base, .. } = &self.0.content { base } else { self }
    }

    pub(super) fn layer(&self) -> Option<&Overlay> {
        if let Content::Overlaid { overlay, .. } = &self.0.content { Some(overlay) } else { None }
    }

    /// Returns the name of its base and the number of its own pages, if it is an overlay: [`Library::overlay`].
    pub fn overlay(&self) -> Option<(&str, usize)> {
        Some((self.base().name(), self.layer()?.count()))
    }

    /// Returns whether it is an overlay with one of these pages.
    pub(crate) fn covers(&self, pages: &Range<usize>) -> bool {
        self.layer().is_some_and(|overlay| overlay.covers(pages))
    }

    /// Returns its chunks: `None` is a chunk of zeros. An image has none. An overlay has those of its base.
    pub fn chunks(&self) -> &[Option<Hash>] {
        if let Content::Chunks { chunks, .. } = &self.base().0.content { chunks } else { &[] }
    }

    /// Returns its working set, if one was recorded.
    pub fn working_set(&self) -> Option<WorkingSet> {
        self.base().0.set.lock().0.clone()
    }

    /// Uses a working set for later guests. Its packs stay in the store while the template is open.
    pub(super) fn use_set(&self, set: WorkingSet) -> Result<(), StoreError> {
        let packs: Vec<String> = set.packs().iter().map(super::Pack::key).collect();
        let pin = match self.library().filter(|_| !packs.is_empty()) {
            Some(library) => Some(library.lease.pin_all(packs)?),
            None => None,
        };
        *self.base().0.set.lock() = (Some(set), pin);
        Ok(())
    }

    /// Sets its working set, for later guests of this process, and in the store for other processes. That of an image
    /// stays in this process. That of an overlay is its base's.
    ///
    /// # Errors
    /// An error of the store. Guests of this process still use it.
    pub fn keep_working_set(&self, set: WorkingSet) -> Result<(), StoreError> {
        let base = self.base();
        let bytes = match &base.0.content {
            Content::Chunks { identity, library, .. } => Some((library, set.print(*identity))),
            _ => None,
        };
        self.use_set(set)?;
        bytes.map_or(Ok(()), |(library, bytes)| library.store.put(&working_set::key(base.name()), &bytes))
    }

    /// Returns whether to record this guest: there is no working set, and no other guest is being recorded.
    pub(crate) fn begin_recording(&self) -> bool {
        self.working_set().is_none() && !self.base().0.recording.swap(true, Ordering::Relaxed)
    }

    /// Makes [`Template::begin_recording`] return false from now on.
    pub(super) fn record_none(&self) {
        self.base().0.recording.store(true, Ordering::Relaxed);
    }

    pub(crate) fn end_recording(&self) {
        self.base().0.recording.store(false, Ordering::Relaxed);
    }

    /// Returns the pages whose content comes together with that of a page: those of its chunk. Of an overlay, those of
    /// them that have the same source as the page.
    pub(crate) fn chunk_of(&self, page: usize) -> Range<usize> {
        let (pages, all) = (self.0.chunk / PAGE, (self.size() / PAGE as u64) as usize);
        // A power of two.
        let first = page & !(pages - 1);
        let chunk = first..(first + pages).min(all);
        self.layer().map_or(chunk.clone(), |overlay| overlay.stretch(page, &chunk))
    }

    /// Returns the version, which identifies its content: the name of its manifest, or the identity of its file.
    pub fn version(&self) -> &str {
        match &self.0.content {
            Content::Chunks { version, .. } | Content::Overlaid { version, .. } => version,
            Content::File(image) => image.identity(),
            Content::Nbd(_, known) => known,
        }
    }

    /// Returns the parts of its image, if it is a whole machine.
    pub(crate) fn machine(&self) -> Option<Machine> {
        if let Content::Chunks { machine, .. } = &self.base().0.content { *machine } else { None }
    }

    /// Returns the library that opened it. An image has none.
    pub(crate) fn library(&self) -> Option<&Library> {
        if let Content::Chunks { library, .. } = &self.base().0.content { Some(library) } else { None }
    }

    /// Reads a chunk or a pack, and notes whether it is lost. An overlay has those of its base.
    pub(super) fn object(
        &self,
        library: &Library,
        key: &str,
        name: Name,
        length: usize,
        compute_limit: Option<&ComputeLimit>,
    ) -> Result<Vec<u8>, StoreError> {
        let (base, read) = (self.base(), library.chunk(key, name, length, compute_limit));
        library.losses.note(base.name(), base.version(), name.hash, &read);
        read
    }

    /// Returns the name of a chunk's object. `None`: zeros, or a chunk of an image.
    pub(super) fn chunk_name(&self, index: usize) -> Option<Name> {
        let Content::Chunks { chunks, epochs, .. } = &self.base().0.content else { return None };
        chunks[index].map(|hash| Name { hash, epoch: epochs[index] })
    }

    /// Returns whether a page is in a chunk of zeros, and not in an overlay.
    pub(crate) fn is_zero(&self, page: usize) -> bool {
        let is_zero = |chunks: &[Option<Hash>]| chunks[page * PAGE / self.0.chunk].is_none();
        !self.chunks().is_empty() && is_zero(self.chunks()) && !self.covers(&(page..page + 1))
    }

    /// Returns the image if it is on this host. Its pages need not be read in chunks.
    pub(crate) fn file(&self) -> Option<&ImageFile> {
        if let Content::File(image) = &self.0.content { Some(image) } else { None }
    }

    /// Returns the name of the chunk that holds a page, for the cache and the store. `None`: zeros.
    fn name_of(&self, page: usize) -> Option<Name> {
        let start = self.chunk_of(page).start * PAGE;
        match &self.0.content {
            Content::Chunks { .. } => self.chunk_name(start / self.0.chunk),
            Content::File(_) | Content::Overlaid { .. } => None,
            Content::Nbd(_, known) => {
                Some(Name { hash: Hash::of(format!("{known}:{start}").as_bytes()), epoch: 0 })
            }
        }
    }

    /// Reads these bytes of its image.
    pub(crate) fn read(&self, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let (mut bytes, mut at, cache) = (Vec::new(), range.start as usize, Cache::new(0));
        while at < range.end as usize {
            let pages = self.chunk_of(at / PAGE);
            let start = pages.start * PAGE;
            let part = at - start..(pages.len() * PAGE).min(range.end as usize - start);
            at = start + part.end;
            match self.content(pages.start, &cache, None)? {
                Some((content, _)) => bytes.extend_from_slice(&content[part]),
                None => bytes.resize(bytes.len() + part.len(), 0),
            }
        }
        Ok(bytes)
    }

    /// Returns the content of the [pages](Self::chunk_of) that come with a page, from the overlay or from `base`.
    fn above<E>(&self, page: usize, base: impl FnOnce(&Self) -> Result<Found, E>) -> Result<Found, E> {
        let pages = self.chunk_of(page);
        if let Some(content) = self.layer().and_then(|overlay| overlay.content(&pages)) {
            return Ok(Some((content, Source::Cache)));
        }
        let (base, first) = (base(self.base())?, self.base().chunk_of(page).start);
        let part = (pages.start - first) * PAGE..(pages.end - first) * PAGE;
        Ok(base.map(|(content, source)| (content.part(part), source)))
    }

    /// Returns the content of the [pages](Self::chunk_of) that come with a page, if the cache has it. The inner `None`:
    /// zeros.
    pub(crate) fn content_now(&self, page: usize, cache: &Cache) -> Option<Found> {
        if self.layer().is_some() {
            return self.above(page, |base| base.content_now(page, cache).ok_or(())).ok();
        }
        if let Some(image) = self.file() {
            return Some(Some((image.pages_now(&self.chunk_of(page))?, Source::Cache)));
        }
        match self.name_of(page) {
            Some(name) => cache.look(&name.hash).map(|content| Some((content, Source::Cache))),
            None => Some(None),
        }
    }

    /// Returns the content of the [pages](Self::chunk_of) that come with a page, through the cache. `None`: zeros. May
    /// sleep. A thread that works ahead of faults passes a `compute_limit`.
    pub(crate) fn content(
        &self,
        page: usize,
        cache: &Cache,
        compute_limit: Option<&ComputeLimit>,
    ) -> Result<Found, StoreError> {
        if self.layer().is_some() {
            return self.above(page, |base| base.content(page, cache, compute_limit));
        }
        let pages = self.chunk_of(page);
        if let Some(image) = self.file() {
            return Ok(Some((image.pages(&pages)?, Source::Store)));
        }
        let Some(name) = self.name_of(page) else { return Ok(None) };
        let (start, length) = (pages.start * PAGE, pages.len() * PAGE);
        match &self.0.content {
            Content::Chunks { library, .. } => {
                let read = || self.object(library, &name.key(), name, length, compute_limit);
                cache.get(name.hash, read).map(Some)
            }
            Content::File(_) | Content::Overlaid { .. } => unreachable!("it was read above"),
            Content::Nbd(nbd, _) => {
                let read = || {
                    let mut content = vec![0; length];
                    let read = nbd.read_at(&mut content, start as u64);
                    read.map_err(|error| StoreError::Io { key: self.0.name.clone(), error })?;
                    Ok(content)
                };
                cache.get(name.hash, read).map(Some)
            }
        }
    }
}
