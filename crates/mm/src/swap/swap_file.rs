//! A file as a swap device: locked by one [`Swap`](super::Swap), recognized by a mark, and truncated.

use super::device::{SwapDevice, errno};
use crate::error::MmError;
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, preadv, pwritev};
use rustix::process::{Resource, getrlimit};
use slat::PAGE_SIZE;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The first bytes of a swap file, in their own block, which distinguish it from other files.
const MARK: &[u8; 16] = b"slat swap file 1";

/// A file that one [`Swap`](super::Swap) of any process uses at a time.
#[derive(Debug)]
pub(super) struct SwapFile {
    file: File,
    /// Its path, if this use created it.
    made: Option<PathBuf>,
}

impl SwapFile {
    /// Opens the file, or creates one with access for this user only; locks and truncates it. Returns how many
    /// bytes fit, as far as is known.
    ///
    /// Truncates after locking, not while opening: another swap may use it. A file that holds anything but swap
    /// is truncated only with `overwrite`.
    pub(super) fn open(path: &Path, overwrite: bool) -> Result<(Self, u64), MmError> {
        // Checked before opening, since opening some devices has side effects.
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(MmError::NotAFile);
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        let (file, made) = match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => (options.open(path), None),
            file => (file, Some(path.to_owned())),
        };
        let file = file.map_err(|error| os("open", &error))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            Errno::WOULDBLOCK => MmError::SwapInUse,
            _ => os("flock", &error.into()),
        })?;
        let found = file.metadata().map_err(|error| os("fstat", &error))?;
        if !found.is_file() {
            return Err(MmError::NotAFile);
        }
        let mut begin = [0; MARK.len()];
        if found.len() > 0 && !overwrite && (file.read_exact_at(&mut begin, 0).is_err() || begin != *MARK) {
            return Err(MmError::NotSwap);
        }
        file.set_len(0).map_err(|error| os("ftruncate", &error))?;
        let room = largest_file().saturating_sub(PAGE_SIZE);
        if room > 0 {
            file.write_all_at(MARK, 0).map_err(|error| os("write", &error))?;
        }
        Ok((Self { file, made }, room))
    }
}

impl SwapDevice for SwapFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.file.write_at(bytes, PAGE_SIZE + offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(bytes, PAGE_SIZE + offset)
    }

    fn write_vectored_at(&self, pieces: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        Ok(pwritev(&self.file, pieces, PAGE_SIZE + offset)?)
    }

    fn read_vectored_at(&self, pieces: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        Ok(preadv(&self.file, pieces, PAGE_SIZE + offset)?)
    }

    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        Some((self.file.as_fd(), PAGE_SIZE))
    }
}

impl Drop for SwapFile {
    /// Truncates the file, which holds guests' memory and is useless now. If that fails, the next user
    /// truncates it.
    fn drop(&mut self) {
        let _ = self.file.set_len(0);
        let is = |found: io::Result<fs::Metadata>| found.map(|found| (found.dev(), found.ino())).ok();
        // Removes it while it is locked, unless another file has taken its path.
        if let Some(path) = &self.made
            && is(fs::symlink_metadata(path)) == is(self.file.metadata())
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the process's limit of file size. Writing past it kills the process.
fn largest_file() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

fn os(call: &'static str, error: &io::Error) -> MmError {
    MmError::Os { call, errno: errno(error) }
}
