//! The memory that clones of a template have in common: a file of shared memory that each of their VMMs maps privately.
//!
//! A page of the template is in it once, however many clones read it. What a clone writes is the kernel's copy-on-write: a page of
//! the clone's own. The file is filled when a clone first needs a chunk, and only by the pager: VMMs open it to read.

use crate::cache::Cache;
use crate::store::Template;
use crate::uffd::PAGE;
use parking_lot::Mutex;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The file of one version of a template. A clone is the same one.
#[derive(Clone, Debug)]
pub struct Share(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: File,
    /// Which chunks are there.
    chunks: Vec<AtomicBool>,
    chunk: usize,
    size: u64,
    /// One chunk is written at a time.
    writing: Mutex<()>,
    /// What was just read and is not written yet.
    cache: Cache,
}

impl Share {
    /// The one of this template in a folder, which is made if it is missing. `FOLDER/NAME`, NAME the template's, leads to it: what VMMs
    /// map privately.
    ///
    /// # Errors
    /// `Unsupported`: the folder is not of shared memory in pages of 4 KiB, a tmpfs as /dev/shm.
    pub fn open(folder: &Path, template: &Template) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let version = file_name(template);
        // Written by this user alone.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(folder.join(&version))?;
        file.set_permissions(Permissions::from_mode(0o644))?;
        let size = template.size();
        if file.metadata()?.len() != size {
            check(&file)?;
            file.set_len(size)?;
        }
        let link = folder.join(template.name());
        if std::fs::read_link(&link).ok().as_deref() != Some(Path::new(&version)) {
            let beside = folder.join(format!(".{}.{}", template.name(), std::process::id()));
            _ = std::fs::remove_file(&beside);
            std::os::unix::fs::symlink(&version, &beside)?;
            std::fs::rename(&beside, &link)?;
        }
        Self::of(file, template)
    }

    /// That of a guest which began with an earlier version of its template, if it is there.
    pub(crate) fn open_again(folder: &Path, template: &Template) -> io::Result<Option<Self>> {
        match OpenOptions::new().read(true).write(true).open(folder.join(file_name(template))) {
            Ok(file) => Self::of(file, template).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn of(file: File, template: &Template) -> io::Result<Self> {
        let (size, chunk) = (template.size(), template.chunk_size());
        let chunks: Vec<AtomicBool> =
            (0..size.div_ceil(chunk as u64)).map(|_| AtomicBool::new(false)).collect();
        // What an earlier worker wrote.
        for (index, is_there) in chunks.iter().enumerate() {
            let start = index as u64 * chunk as u64;
            let hole = unwritten(&file, start)?;
            is_there.store(hole >= size.min(start + chunk as u64), Ordering::Relaxed);
        }
        Ok(Self(Arc::new(Inner {
            file,
            chunks,
            chunk,
            size,
            writing: Mutex::new(()),
            cache: Cache::new(4 << 20),
        })))
    }

    /// Whether this is a descriptor of the file.
    pub fn is(&self, other: impl AsFd) -> bool {
        let about = self.0.file.metadata().map(|about| (about.dev(), about.ino()));
        let other = rustix::fs::fstat(other).map(|about| (about.st_dev, about.st_ino));
        matches!((about, other), (Ok(about), Ok(other)) if about == other)
    }

    /// Memory that it takes, in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.file.metadata().map_or(0, |about| about.blocks() * 512)
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.0.cache
    }

    /// Whether the pages of a chunk are there: `pages` are all of them.
    pub(crate) fn has(&self, pages: &Range<usize>) -> bool {
        self.0.chunks[pages.start * PAGE / self.0.chunk].load(Ordering::Acquire)
    }

    /// Fills a chunk. Two that do it at once write the same.
    pub(crate) fn write(&self, pages: &Range<usize>, content: &[u8]) -> io::Result<()> {
        let start = pages.start * PAGE;
        let _writing = self.0.writing.lock();
        if !self.has(pages) {
            debug_assert!(start as u64 + content.len() as u64 <= self.0.size);
            self.0.file.write_all_at(content, start as u64)?;
            // The content before the word that it is there.
            self.0.chunks[start / self.0.chunk].store(true, Ordering::Release);
        }
        Ok(())
    }
}

/// The version of a template as the name of a file: that of an image has characters which names have not.
fn file_name(template: &Template) -> String {
    template.version().replace('/', "_")
}

/// The first page from here on that was not written.
fn unwritten(file: &File, from: u64) -> io::Result<u64> {
    // SAFETY: the call takes numbers.
    let found = unsafe { libc::lseek(file.as_raw_fd(), from as i64, libc::SEEK_HOLE) };
    u64::try_from(found).map_err(|_| io::Error::last_os_error())
}

/// A page that is written must bring no others of zeros, as huge pages would: they would look like content.
fn check(file: &File) -> io::Result<()> {
    let is_shared_memory = rustix::fs::fstatfs(file)?.f_type as i64 == libc::TMPFS_MAGIC;
    file.set_len(4 << 20)?;
    file.write_all_at(&[1; PAGE], 0)?;
    let is_fine = unwritten(file, 0)? == PAGE as u64;
    file.set_len(0)?;
    if is_shared_memory && is_fine {
        return Ok(());
    }
    let what = "the folder that clones share is not of shared memory in pages of 4 KiB: take one in /dev/shm";
    Err(io::Error::new(io::ErrorKind::Unsupported, what))
}
