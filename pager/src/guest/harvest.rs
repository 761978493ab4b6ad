//! Snapshots of a guest that runs on.

use super::bits::Bits;
use super::memory_reader::MemoryReader;
use super::{Backing, Guest, Inner};
use crate::sabotage::Sabotage;
use crate::store::{StoreError, Template};
use crate::uffd::{Features, PAGE};
use serde::{Deserialize, Serialize};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long an instant may wait for changes of the guest's memory.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HarvestError {
    /// One is under way.
    #[error("another snapshot of this guest is under way")]
    Busy,
    /// What the guest began with has no chunks.
    #[error(
        "the guest began with an image, not with a template of a store: make one of it with `slat-pager snapshot`"
    )]
    Image,
    /// Its memory cannot be protected or read.
    #[error("the guest's memory: {0}")]
    Memory(io::Error),
    /// Content was lost that cannot be part of a snapshot.
    #[error("{0} pages of the guest are lost: it cannot be saved")]
    Poisoned(u64),
    /// What the store says.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The pages that a guest wrote since its last snapshot, as they were at one instant. Dropping it without [`Harvest::store`] gives
/// them back: they are part of the next one.
pub struct Harvest {
    inner: Arc<Inner>,
    pages: Bits,
    is_stored: bool,
}

/// A snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stored {
    /// Pages that may differ from the snapshot before.
    pub pages: usize,
    /// Chunks that have such pages.
    pub chunks: usize,
    /// Chunks that the store did not have.
    pub written: usize,
}

/// A guest, for threads that do not serve it.
#[derive(Clone)]
pub struct Handle(pub(super) Arc<Inner>);

impl Guest {
    /// By which other threads make snapshots of it.
    pub fn handle(&self) -> Handle {
        Handle(self.inner.clone())
    }
}

impl Handle {
    /// Takes what the guest wrote since its last snapshot. The snapshot has the memory as it is in this call, so the guest must not
    /// run meanwhile, and what else is saved of it must be of the same time. It may run as soon as this returns.
    ///
    /// The first harvest takes every page that was served, and begins to track writes.
    pub fn harvest(&self) -> Result<Harvest, HarvestError> {
        let inner = &self.0;
        if inner.template.chunks().is_empty() {
            return Err(HarvestError::Image);
        }
        let poisoned = inner.poisoned.load(Ordering::Relaxed);
        if poisoned > 0 {
            return Err(HarvestError::Poisoned(poisoned));
        }
        if inner.tracking.is_taken.swap(true, Ordering::Relaxed) {
            return Err(HarvestError::Busy);
        }
        match inner.take_dirty() {
            Ok(pages) => Ok(Harvest { inner: inner.clone(), pages, is_stored: false }),
            Err(error) => {
                inner.tracking.is_taken.store(false, Ordering::Relaxed);
                Err(HarvestError::Memory(error))
            }
        }
    }
}

impl Inner {
    fn take_dirty(&self) -> io::Result<Bits> {
        if self.uffd.features()?.has(Features::WRITES_UNASKED) {
            let what =
                "its VMM asked for asynchronous write protection, which permits writes before they are known";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        let mut is_shared = false;
        for region in self.layout.regions() {
            is_shared |= self.uffd.track(region.base, region.size)?;
        }
        if self.is_huge() {
            for region in self.layout.regions() {
                if super::memory_reader::is_shared(self.life.as_ref(), region.base)? {
                    let what = "it is shared memory in huge pages, of which no snapshots are made";
                    return Err(io::Error::new(io::ErrorKind::Unsupported, what));
                }
            }
            // The kernel says so of private ones, too.
            is_shared = false;
        }
        let reader = match &self.backing {
            Backing::Memory(memory) if is_shared => MemoryReader::Memory(memory.try_clone()?.into(), None),
            Backing::Swapped { memory, swap } if is_shared => {
                MemoryReader::Memory(memory.try_clone()?.into(), Some(swap.try_clone()?.into()))
            }
            Backing::Own if is_shared => {
                let what = "it is shared memory, whose file did not come with the handshake";
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
            _ => MemoryReader::of_process(self.life.as_ref())?,
        };
        let settled = || Bits::of(self.layout.image_pages(), |page| self.journal.is_settled(page));
        let until = Instant::now() + PATIENCE;
        loop {
            let order = self.order.write();
            // What a clone wrote until now, only the kernel knows. And a pager before this one may have been killed when a page was
            // there and not noted yet. Protection leaves marks among them, so they are looked for before it.
            let there = Bits::new(self.layout.image_pages());
            if !self.tracking.is_on() && self.options.sabotage != Some(Sabotage::Unnoted) {
                reader.own_pages(&self.layout, |page| there.set(page))?;
            }
            let protect = |region: &crate::layout::Region| self.uffd.protect(region.base, region.size);
            match self.layout.regions().iter().try_for_each(protect) {
                Ok(()) => {
                    let pages = if self.tracking.is_on() { self.tracking.dirty.take() } else { settled() };
                    pages.add(&there);
                    self.tracking.begin(reader, &pages, settled());
                    return Ok(pages);
                }
                // A removal waits to be read, by a thread that waits for this one.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && Instant::now() < until => {
                    drop(order);
                    std::thread::sleep(super::serve::CHANGE);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Harvest {
    /// How many pages there are.
    pub fn pages(&self) -> usize {
        self.pages.count()
    }

    /// Makes a template of them and of what the snapshot before has for the others. It may sleep, while the guest runs on.
    ///
    /// # Errors
    /// The guest goes on, and the pages are part of the next snapshot.
    pub fn store(mut self, name: &str) -> Result<Stored, HarvestError> {
        let inner = self.inner.clone();
        let parent = inner.tracking.parent.lock().clone().unwrap_or_else(|| inner.template.clone());
        let mut stored = Stored { pages: self.pages(), ..Stored::default() };
        let pages = parent.chunk_size() / PAGE;
        let changed: Vec<usize> = (0..parent.chunks().len())
            .filter(|chunk| self.pages.runs(chunk * pages..(chunk + 1) * pages).next().is_some())
            .collect();
        stored.chunks = changed.len();
        let read = |chunk: usize| self.chunk(&parent, parent.chunk_of(chunk * pages));
        let (template, written) = parent.derive(name, &changed, &inner.plan.compute_limit, read)?;
        stored.written = written;
        *inner.tracking.parent.lock() = Some(template);
        self.is_stored = true;
        Ok(stored)
    }

    /// The content of a chunk at the instant.
    fn chunk(&self, parent: &Template, chunk: Range<usize>) -> Result<Vec<u8>, HarvestError> {
        let mut content = vec![0; chunk.len() * PAGE];
        let runs: Vec<_> = self.pages.runs(chunk.clone()).collect();
        let is_whole = runs == [chunk.clone()] && {
            let capture = self.inner.tracking.capture.lock();
            capture.as_ref().is_some_and(|capture| chunk.clone().all(|page| capture.zeros.has(page)))
        };
        if !is_whole
            && let Some((bytes, _)) =
                parent.content(chunk.start, &self.inner.cache, Some(&self.inner.plan.compute_limit))?
        {
            content.copy_from_slice(&bytes);
        }
        for run in runs {
            let mut capture = self.inner.tracking.capture.lock();
            let capture = capture.as_mut().expect("it is there as long as the harvest");
            capture.read(&self.inner, run, chunk.start, &mut content).map_err(HarvestError::Memory)?;
        }
        Ok(content)
    }
}

impl Drop for Harvest {
    fn drop(&mut self) {
        if !self.is_stored && self.inner.options.sabotage != Some(Sabotage::GiveBack) {
            self.inner.tracking.dirty.add(&self.pages);
        }
        self.inner.tracking.end();
    }
}
