//! Snapshots of a running guest.

use super::bits::Bits;
use super::memory_reader::MemoryReader;
use super::{Backing, Guest, Inner};
use crate::store::{StoreError, Template};
use crate::uffd::{Features, PAGE};
use serde::{Deserialize, Serialize};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time limit of the wait for changes of the guest's memory at the instant.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HarvestError {
    /// Another snapshot is under way.
    #[error("another snapshot of this guest is under way")]
    Busy,
    /// The guest began with an image, which has no chunks.
    #[error(
        "the guest began with an image, not with a template of a store: make one of it with `slat-pager snapshot`"
    )]
    Image,
    /// The guest's memory cannot be protected or read.
    #[error("the guest's memory: {0}")]
    Memory(io::Error),
    /// The store lost content that the snapshot needs.
    #[error("{0} pages of the guest are lost: it cannot be saved")]
    Poisoned(u64),
    /// An error of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The pages that a guest wrote since its last snapshot, as they were at one instant. Dropping it without
/// [`Harvest::store`] makes them part of the next snapshot.
pub struct Harvest {
    inner: Arc<Inner>,
    pages: Bits,
    is_stored: bool,
}

/// Counters of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stored {
    /// Pages that may differ from the previous snapshot.
    pub pages: usize,
    /// Chunks with such pages.
    pub chunks: usize,
    /// Chunks that were new to the store.
    pub written: usize,
}

/// A handle to a guest, for threads that do not serve it.
#[derive(Clone)]
pub struct Handle(pub(super) Arc<Inner>);

impl Guest {
    /// Returns a handle by which other threads make snapshots of the guest.
    pub fn handle(&self) -> Handle {
        Handle(self.inner.clone())
    }
}

impl Handle {
    /// Takes the pages that the guest wrote since its last snapshot. The snapshot has the memory as of this call, so
    /// the guest must not run during the call, and the rest of its saved state must be of the same time. The guest may
    /// run as soon as this returns.
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
            // The kernel reports private mappings like this, too.
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
            // Only the kernel knows what a clone wrote until now. And an earlier pager may have been killed when a page
            // was present and not yet noted. Protection leaves markers among these pages, so look for them before it.
            let there = Bits::new(self.layout.image_pages());
            if !self.tracking.is_on() {
                reader.own_pages(&self.layout, |page| there.set(page))?;
            }
            let protect = |region: &crate::layout::Region| self.uffd.protect(region.base, region.size);
            match self.layout.regions().iter().try_for_each(protect) {
                Ok(()) => {
                    let pages = if self.tracking.is_on() { self.tracking.dirty().take() } else { settled() };
                    pages.add(&there);
                    self.tracking.begin(reader, &pages, settled());
                    return Ok(pages);
                }
                // A removal's event waits for a thread that waits for this one.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && Instant::now() < until => {
                    drop(order);
                    std::thread::sleep(super::fault::CHANGE);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Harvest {
    /// Returns the number of pages.
    pub fn pages(&self) -> usize {
        self.pages.count()
    }

    /// Makes a template of these pages, and of the previous snapshot for all others. May sleep; the guest runs on.
    ///
    /// # Errors
    /// The store's, or the guest's memory. The guest continues, and the pages are part of the next snapshot.
    pub fn store(mut self, name: &str) -> Result<Stored, HarvestError> {
        let inner = self.inner.clone();
        let parent = inner.tracking.parent.lock().clone().unwrap_or_else(|| inner.template.clone());
        let mut stored = Stored { pages: self.pages(), ..Stored::default() };
        let pages = parent.chunk_size() / PAGE;
        // The snapshot is no overlay: it has chunks with the overlay's pages.
        let is_changed =
            |chunk: &Range<usize>| self.pages.runs(chunk.clone()).next().is_some() || parent.covers(chunk);
        let changed: Vec<usize> = (0..parent.chunks().len())
            .filter(|chunk| is_changed(&(chunk * pages..(chunk + 1) * pages)))
            .collect();
        stored.chunks = changed.len();
        let read = |chunk: usize| self.chunk(&parent, parent.base().chunk_of(chunk * pages));
        let (template, written) = parent.derive(name, &changed, &inner.plan.compute_limit, read)?;
        stored.written = written;
        *inner.tracking.parent.lock() = Some(template);
        self.is_stored = true;
        Ok(stored)
    }

    /// Returns the content of a chunk at the instant.
    fn chunk(&self, parent: &Template, chunk: Range<usize>) -> Result<Vec<u8>, HarvestError> {
        let mut content = vec![0; chunk.len() * PAGE];
        let runs: Vec<_> = self.pages.runs(chunk.clone()).collect();
        let is_whole = runs == [chunk.clone()] && {
            let capture = self.inner.tracking.capture.lock();
            capture.as_ref().is_some_and(|capture| chunk.clone().all(|page| capture.zeros.has(page)))
        };
        let (mut next, inner) = (if is_whole { chunk.end } else { chunk.start }, &self.inner);
        while next < chunk.end {
            if let Some((bytes, _)) = parent.content(next, &inner.cache, Some(&inner.plan.compute_limit))? {
                content[(next - chunk.start) * PAGE..][..bytes.len()].copy_from_slice(&bytes);
            }
            next = parent.chunk_of(next).end;
        }
        for run in runs {
            let mut capture = self.inner.tracking.capture.lock();
            let capture = capture.as_mut().expect("it is there as long as the harvest");
            let Inner { layout, journal, .. } = &*self.inner;
            capture.read(layout, journal, run, chunk.start, &mut content).map_err(HarvestError::Memory)?;
        }
        Ok(content)
    }
}

impl Drop for Harvest {
    fn drop(&mut self) {
        if !self.is_stored {
            self.inner.tracking.dirty().add(&self.pages);
        }
        self.inner.tracking.end();
    }
}
