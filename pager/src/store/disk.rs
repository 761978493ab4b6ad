//! Chunks on a disk of this host, between the store and memory.
//!
//! The folder has a file for each chunk or pack, with the bytes that the store has, under the hash of the content. The
//! reader compares the hash with the content that it expands, as it does with an object of the store. So no file needs to
//! be whole: one that a crash cut off, or that the disk damaged, counts as absent and is removed.
//!
//! Several processes of a host may use one folder. The time of a file is that of its last use. A process that has written a
//! sixteenth of the limit lists the folder, and removes the files that were used longest ago, down to seven eighths of the
//! limit. So up to two processes stay within it.
//!
//! A thread of its own writes, and drops what it cannot keep up with: no fault waits for it. When the folder cannot be read
//! or written, also because the disk is full, chunks come from the store, as without it.

use super::Hash;
use super::chunk::MOST_STORED;
use super::faulty::Before;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::SystemTime;

/// Number of chunks that wait to be written; further ones are dropped.
const QUEUE: usize = 64;
/// Number of chunks that are dropped after one that could not be written, before the next try.
const REST: u64 = 256;
/// Bytes of a block of the disk.
const BLOCK: u64 = 4096;

/// A folder of this host that keeps chunks of a store, up to a limit. A clone of the value refers to the same folder.
///
/// ```
/// # use slat_pager::*;
/// # let folder = std::env::temp_dir().join(format!("slat-pager-doc-disk-{}", std::process::id()));
/// let disk = Disk::new(folder.join("disk"), 64 << 20, |line| eprintln!("{line}"));
/// let library = Library::new(Folder::open(folder.join("store"))?).on_disk(disk.clone());
/// assert_eq!(disk.stats(), DiskStats::default());
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Disk(Arc<Inner>);

/// Counters of a [`Disk`], of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct DiskStats {
    /// Chunks that were read from the folder.
    pub hits: u64,
    /// Chunks that were not there.
    pub misses: u64,
    /// Files that were cut off or damaged, and removed.
    pub damaged: u64,
    /// Chunks that were written.
    pub written: u64,
    /// Chunks that were not written, because the disk did not keep up or refused, or another process had written them.
    pub dropped: u64,
    /// Chunks that were removed, because others were used later.
    pub evicted: u64,
}

struct Inner {
    place: Arc<Place>,
    /// `None`: no thread could be started.
    queue: Option<SyncSender<(Hash, Vec<u8>)>>,
}

/// The folder, as reading threads and the writing one see it.
struct Place {
    folder: PathBuf,
    limit: u64,
    tell: Box<dyn Fn(&str) + Send + Sync>,
    /// Called before each access; for tests.
    before: Box<Before>,
    /// The last read failed, and the last write.
    is_failing: [AtomicBool; 2],
    stats: [AtomicU64; 6],
}

/// State of the writing thread.
#[derive(Default)]
struct Writing {
    /// Bytes that it wrote since it last listed the folder. `None`: it has not listed it since it began, or since a failure.
    written: Option<u64>,
    /// Chunks to drop before the next write.
    rest: u64,
}

/// Index of a counter.
#[derive(Clone, Copy)]
enum Count {
    Hit,
    Miss,
    Damaged,
    Written,
    Dropped,
    Evicted,
}

impl Disk {
    /// Uses the files of this folder, at most `limit` bytes. Makes the folder if it is absent. Calls `tell` with a line when
    /// the folder cannot be used, and when it can be used again.
    pub fn new(folder: impl Into<PathBuf>, limit: u64, tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self::calling(folder, limit, tell, |_| Ok(()))
    }

    /// As [`Disk::new`]. Calls `before` with the name of the call before each access to the folder, which fails if the
    /// function fails.
    #[doc(hidden)]
    pub fn calling(
        folder: impl Into<PathBuf>,
        limit: u64,
        tell: impl Fn(&str) + Send + Sync + 'static,
        before: impl Fn(&str) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let place = Arc::new(Place {
            folder: folder.into(),
            limit,
            tell: Box::new(tell),
            before: Box::new(before),
            is_failing: Default::default(),
            stats: Default::default(),
        });
        let (queue, work) = sync_channel::<(Hash, Vec<u8>)>(QUEUE);
        let writer = place.clone();
        let write = move || {
            let mut state = Writing::default();
            while let Ok((hash, stored)) = work.recv() {
                writer.write(&hash, &stored, &mut state);
            }
        };
        let is_started = std::thread::Builder::new().name("disk".into()).spawn(write).is_ok();
        Self(Arc::new(Inner { place, queue: is_started.then_some(queue) }))
    }

    /// Returns the counters.
    pub fn stats(&self) -> DiskStats {
        let [hits, misses, damaged, written, dropped, evicted] =
            std::array::from_fn(|count| self.0.place.stats[count].load(Ordering::Relaxed));
        DiskStats { hits, misses, damaged, written, dropped, evicted }
    }

    /// Returns the content of this hash, which `expand` makes of the stored bytes. `None`: the folder does not have it whole.
    pub(super) fn get<E>(
        &self,
        hash: &Hash,
        expand: impl FnOnce(&[u8]) -> Result<Vec<u8>, E>,
    ) -> Option<Vec<u8>> {
        let place = &self.0.place;
        let Some(stored) = place.note(0, place.read(hash)).flatten() else {
            place.count(Count::Miss);
            return None;
        };
        let content = expand(&stored).ok();
        if content.is_none() {
            _ = fs::remove_file(place.file(hash));
        }
        place.count(if content.is_some() { Count::Hit } else { Count::Damaged });
        content
    }

    /// Keeps a chunk whose hash was checked.
    pub(super) fn put(&self, hash: Hash, stored: Vec<u8>) {
        let is_queued = self.0.queue.as_ref().is_some_and(|queue| queue.try_send((hash, stored)).is_ok());
        if !is_queued {
            self.0.place.count(Count::Dropped);
        }
    }
}

impl Place {
    fn count(&self, count: Count) {
        self.stats[count as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn file(&self, hash: &Hash) -> PathBuf {
        self.folder.join(hash.to_string())
    }

    /// Tells a failure after successes, and a success after failures: of reads (0) or writes (1).
    fn note<T>(&self, kind: usize, result: io::Result<T>) -> Option<T> {
        let (what, folder) = (["read", "written"][kind], self.folder.display());
        let was_failing = self.is_failing[kind].swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Err(error) if !was_failing => {
                (self.tell)(&format!("{folder}: {error}: no chunk is {what}, all come from the store"));
            }
            Ok(_) if was_failing => (self.tell)(&format!("{folder}: chunks are {what} again")),
            _ => {}
        }
        result.ok()
    }

    fn read(&self, hash: &Hash) -> io::Result<Option<Vec<u8>>> {
        (self.before)("read")?;
        // A pipe of this name does not hold up the reader.
        let open = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(self.file(hash));
        let file = match open {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut stored = Vec::new();
        (&file).take(MOST_STORED as u64 + 1).read_to_end(&mut stored)?;
        // It was used. If that cannot be noted, it goes earlier.
        _ = file.set_modified(SystemTime::now());
        Ok(Some(stored))
    }

    fn write(&self, hash: &Hash, stored: &[u8], state: &mut Writing) {
        let size = (stored.len() as u64).next_multiple_of(BLOCK);
        if state.rest > 0 || size > self.limit / 16 {
            state.rest = state.rest.saturating_sub(1);
            return self.count(Count::Dropped);
        }
        match self.note(1, self.try_write(hash, stored, size, state)) {
            Some(true) => self.count(Count::Written),
            Some(false) => self.count(Count::Dropped),
            None => {
                self.count(Count::Dropped);
                *state = Writing { written: None, rest: REST };
            }
        }
    }

    /// Writes a file. Returns whether it did: another process may have written it, or write it now.
    fn try_write(&self, hash: &Hash, stored: &[u8], size: u64, state: &mut Writing) -> io::Result<bool> {
        let written = match state.written {
            Some(written) if written + size <= self.limit / 16 => written,
            _ => {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
                self.evict()?;
                0
            }
        };
        state.written = Some(written + size);
        (self.before)("write")?;
        let file = self.file(hash);
        let mut new = match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            new => new?,
        };
        let result = new.write_all(stored).and_then(|()| (self.before)("written"));
        result.inspect_err(|_| _ = fs::remove_file(&file)).map(|()| true)
    }

    /// Removes the files that were used longest ago, if all have more than seven eighths of the limit. Leaves files with other
    /// names.
    fn evict(&self) -> io::Result<()> {
        (self.before)("list")?;
        let (mut files, mut bytes) = (Vec::new(), 0);
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let is_chunk = entry.file_name().to_str().and_then(Hash::parse).is_some();
            // Another process may have removed it.
            if let Some(about) = entry.metadata().ok().filter(|about| is_chunk && about.is_file()) {
                let size = about.len().next_multiple_of(BLOCK);
                bytes += size;
                files.push((about.modified()?, entry.path(), size));
            }
        }
        files.sort();
        for (_, path, size) in files {
            if bytes <= self.limit / 8 * 7 {
                break;
            }
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => self.count(Count::Evicted),
            }
            bytes -= size;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
