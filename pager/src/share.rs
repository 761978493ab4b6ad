//! Memory that clones of a template share: a file of shared memory that each VMM maps privately.
//!
//! The file has each page of the template once, however many clones read it. When a clone writes, the kernel's
//! copy-on-write gives it a page of its own. The pager fills a chunk of the file when a clone first needs it. Only the
//! pager writes to the file; VMMs open it to read.

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

/// The file of one version of a template. A clone of the value refers to the same file.
#[derive(Clone, Debug)]
pub struct Share(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: File,
    /// Chunks that are present.
    chunks: Vec<AtomicBool>,
    chunk: usize,
    size: u64,
    /// Serializes writes of chunks.
    writing: Mutex<()>,
    /// Content that was just read and is not written yet.
    cache: Cache,
}

impl Share {
    /// Opens the file of this template in a folder, or makes it. `FOLDER/NAME`, with the template's name, links to it;
    /// VMMs map it privately.
    ///
    /// # Errors
    /// `Unsupported`: the folder is not shared memory in pages of 4 KiB (a tmpfs such as /dev/shm).
    pub fn open(folder: &Path, template: &Template) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let version = file_name(template);
        // Only this user may write to it.
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

    /// Opens the file of a guest that began with an earlier version of its template, if it exists.
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
        // Chunks that an earlier worker wrote.
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

    /// Returns whether `other` is a descriptor of the file.
    pub fn is(&self, other: impl AsFd) -> bool {
        let about = self.0.file.metadata().map(|about| (about.dev(), about.ino()));
        let other = rustix::fs::fstat(other).map(|about| (about.st_dev, about.st_ino));
        matches!((about, other), (Ok(about), Ok(other)) if about == other)
    }

    /// Returns the memory that it takes, in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.file.metadata().map_or(0, |about| about.blocks() * 512)
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.0.cache
    }

    /// Returns whether a chunk is present; `pages` are all of its pages.
    pub(crate) fn has(&self, pages: &Range<usize>) -> bool {
        self.0.chunks[pages.start * PAGE / self.0.chunk].load(Ordering::Acquire)
    }

    /// Fills a chunk. Two threads that do it at once write the same bytes.
    pub(crate) fn write(&self, pages: &Range<usize>, content: &[u8]) -> io::Result<()> {
        let start = pages.start * PAGE;
        let _writing = self.0.writing.lock();
        if !self.has(pages) {
            debug_assert!(start as u64 + content.len() as u64 <= self.0.size);
            self.0.file.write_all_at(content, start as u64)?;
            // The content comes before the flag that says so.
            self.0.chunks[start / self.0.chunk].store(true, Ordering::Release);
        }
        Ok(())
    }
}

/// Returns the version of a template as a file name. The version of an image has characters that names must not have.
/// Overlays share the file of their base: a clone has the pages of its overlay for itself.
fn file_name(template: &Template) -> String {
    template.base().version().replace('/', "_")
}

/// Returns the first page from here on that was not written.
fn unwritten(file: &File, from: u64) -> io::Result<u64> {
    // SAFETY: the call takes numbers.
    let found = unsafe { libc::lseek(file.as_raw_fd(), from as i64, libc::SEEK_HOLE) };
    u64::try_from(found).map_err(|_| io::Error::last_os_error())
}

/// Checks that the file has no huge pages. A write to one page would then add other pages of zeros, which look like
/// content.
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
