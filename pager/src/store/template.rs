//! An open template: finds the content of each of its pages.

use super::chunk::Name;
use super::lease::Pin;
use super::manifest::{Machine, Manifest};
use super::{Hash, ImageFile, Library, Nbd, Store, StoreError, WorkingSet, chunk, working_set};
use crate::cache::{Cache, Chunk, Source};
use crate::compute_limit::ComputeLimit;
use crate::uffd::PAGE;
use parking_lot::Mutex;
use std::io;
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
    /// The working set for later guests.
    set: Mutex<Option<WorkingSet>>,
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
    /// The source of an image, and the name of its pieces in the cache.
    Image(Box<dyn Bytes>, String),
}

/// A source of bytes by offset.
trait Bytes: Send + Sync {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
}

impl Bytes for ImageFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        ImageFile::read_at(self, bytes, offset)
    }
}

impl Bytes for Nbd {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        Nbd::read_at(self, bytes, offset)
    }
}

impl Template {
    pub(super) fn new(
        name: &str,
        version: &str,
        manifest: Manifest,
        library: Library,
        set: Option<WorkingSet>,
        pin: Pin,
    ) -> Self {
        let identity = manifest.identity();
        let Manifest { size, chunk, chunks: names, machine } = manifest;
        let chunks = names.iter().map(|name| name.map(|name| name.hash)).collect();
        let epochs = names.iter().map(|name| name.map_or(0, |name| name.epoch)).collect();
        let version = version.into();
        let content = Content::Chunks { chunks, epochs, library, identity, version, machine, _pin: pin };
        Self::with(name.into(), size, chunk, content, set)
    }

    /// Opens an image of guest memory in whole pages, a file or a block device: without a store, and without a check of its content. It must not
    /// change.
    pub fn of_image(path: &Path) -> Result<Self, StoreError> {
        let image = ImageFile::open(path)?;
        let (name, known) = (image.name().to_owned(), image.identity().to_owned());
        Self::of_bytes(name, image.size(), Box::new(image), known)
    }

    /// Opens an image of guest memory in whole pages on an NBD server: `nbd://HOST:PORT/EXPORT`, or
    /// `nbd+unix:///EXPORT?socket=PATH`. It must not change.
    pub fn of_nbd(address: &str) -> Result<Self, StoreError> {
        let nbd = Nbd::open(address).map_err(|error| StoreError::Io { key: address.into(), error })?;
        // An address may exceed the limit of messages between keeper and worker.
        let known = format!("nbd:{}", Hash::of(address.as_bytes()));
        Self::of_bytes(address.into(), nbd.size(), Box::new(nbd), known)
    }

    fn of_bytes(name: String, size: u64, bytes: Box<dyn Bytes>, known: String) -> Result<Self, StoreError> {
        const CHUNK: usize = 256 << 10;
        Manifest::check(size, CHUNK)?;
        Ok(Self::with(name, size, CHUNK, Content::Image(bytes, known), None))
    }

    fn with(name: String, size: u64, chunk: usize, content: Content, set: Option<WorkingSet>) -> Self {
        let (set, recording) = (Mutex::new(set), AtomicBool::new(false));
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

    /// Returns its chunks: `None` is a chunk of zeros. An image has none.
    pub fn chunks(&self) -> &[Option<Hash>] {
        match &self.0.content {
            Content::Chunks { chunks, .. } => chunks,
            Content::Image(..) => &[],
        }
    }

    /// Returns its working set, if one was recorded.
    pub fn working_set(&self) -> Option<WorkingSet> {
        self.0.set.lock().clone()
    }

    /// Sets its working set, for later guests of this process, and in the store for other processes. That of an image
    /// stays in this process.
    ///
    /// # Errors
    /// An error of the store. Guests of this process still use it.
    pub fn keep_working_set(&self, set: WorkingSet) -> Result<(), StoreError> {
        let bytes = match &self.0.content {
            Content::Chunks { identity, library, .. } => Some((library, set.print(*identity))),
            Content::Image(..) => None,
        };
        *self.0.set.lock() = Some(set);
        bytes.map_or(Ok(()), |(library, bytes)| library.store.put(&working_set::key(&self.0.name), &bytes))
    }

    /// Returns whether to record this guest: there is no working set, and no other guest is being recorded.
    pub(crate) fn begin_recording(&self) -> bool {
        self.0.set.lock().is_none() && !self.0.recording.swap(true, Ordering::Relaxed)
    }

    /// Makes [`Template::begin_recording`] return false from now on.
    pub(super) fn record_none(&self) {
        self.0.recording.store(true, Ordering::Relaxed);
    }

    pub(crate) fn end_recording(&self) {
        self.0.recording.store(false, Ordering::Relaxed);
    }

    /// Returns the pages of the chunk that holds a page.
    pub(crate) fn chunk_of(&self, page: usize) -> Range<usize> {
        let (pages, all) = (self.0.chunk / PAGE, (self.size() / PAGE as u64) as usize);
        let first = page / pages * pages;
        first..(first + pages).min(all)
    }

    /// Returns the version, which identifies its content: the name of its manifest, or the identity of its file.
    pub fn version(&self) -> &str {
        match &self.0.content {
            Content::Chunks { version, .. } => version,
            Content::Image(_, known) => known,
        }
    }

    /// Returns the parts of its image, if it is a whole machine.
    pub(crate) fn machine(&self) -> Option<Machine> {
        if let Content::Chunks { machine, .. } = &self.0.content { *machine } else { None }
    }

    /// Returns the library that opened it. An image has none.
    pub(crate) fn library(&self) -> Option<&Library> {
        match &self.0.content {
            Content::Chunks { library, .. } => Some(library),
            Content::Image(..) => None,
        }
    }

    /// Returns the name of a chunk's object. `None`: zeros, or a chunk of an image.
    pub(super) fn chunk_name(&self, index: usize) -> Option<Name> {
        match &self.0.content {
            Content::Chunks { chunks, epochs, .. } => {
                chunks[index].map(|hash| Name { hash, epoch: epochs[index] })
            }
            Content::Image(..) => None,
        }
    }

    /// Returns the name of the chunk that holds a page, for the cache and the store. `None`: zeros.
    fn name_of(&self, page: usize) -> Option<Name> {
        let start = self.chunk_of(page).start * PAGE;
        match &self.0.content {
            Content::Chunks { .. } => self.chunk_name(start / self.0.chunk),
            Content::Image(_, known) => {
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

    /// Returns the content of the chunk that holds a page, if the cache has it. The inner `None`: zeros.
    pub(crate) fn content_now(&self, page: usize, cache: &Cache) -> Option<Found> {
        match self.name_of(page) {
            Some(name) => cache.look(&name.hash).map(|content| Some((content, Source::Cache))),
            None => Some(None),
        }
    }

    /// Returns the content of the chunk that holds a page, through the cache. `None`: zeros. May sleep. A thread that
    /// works ahead of faults passes a `compute_limit`.
    pub(crate) fn content(
        &self,
        page: usize,
        cache: &Cache,
        compute_limit: Option<&ComputeLimit>,
    ) -> Result<Found, StoreError> {
        let Some(name) = self.name_of(page) else { return Ok(None) };
        let pages = self.chunk_of(page);
        let (start, length) = (pages.start * PAGE, pages.len() * PAGE);
        match &self.0.content {
            Content::Chunks { library, .. } => {
                cache.get(name.hash, || self::read(&*library.store, name, length, compute_limit)).map(Some)
            }
            Content::Image(bytes, _) => {
                let read = || {
                    let mut content = vec![0; length];
                    let read = bytes.read_at(&mut content, start as u64);
                    read.map_err(|error| StoreError::Io { key: self.0.name.clone(), error })?;
                    Ok(content)
                };
                cache.get(name.hash, read).map(Some)
            }
        }
    }
}

/// Reads a chunk, and checks it.
pub(super) fn read(
    store: &dyn Store,
    name: Name,
    length: usize,
    compute_limit: Option<&ComputeLimit>,
) -> Result<Vec<u8>, StoreError> {
    let stored = store.get(&name.key(), chunk::MOST_STORED)?;
    let _permit = compute_limit.map(ComputeLimit::acquire);
    chunk::expand(name, &stored, length)
}
