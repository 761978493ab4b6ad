//! Where blocks of 4 KiB go: a file, or anything that can be written and read at an offset.
//!
//! A device may do a part of what it was asked to, or be interrupted: it is asked again for the rest.

use crate::error::MmError;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use slat::PAGE_SIZE;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) const PAGE: usize = PAGE_SIZE as usize;
/// What a page holds.
pub(super) type Bytes = [u8; PAGE];

/// Something that keeps blocks. Each is written before it is read, by one thread at a time; different blocks at once.
/// Give it to a [swap](super::SwapBuilder::device) in an [`Arc`] to keep a hand on it.
///
/// ```
/// use slat_mm::*;
/// use std::{io, sync::Mutex};
///
/// /// A megabyte of this process's own memory.
/// #[derive(Debug)]
/// struct Megabyte(Mutex<Vec<u8>>);
///
/// impl SwapDevice for Megabyte {
///     fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
///         self.0.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
///         Ok(bytes.len())
///     }
///
///     fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
///         bytes.copy_from_slice(&self.0.lock().unwrap()[offset as usize..][..bytes.len()]);
///         Ok(bytes.len())
///     }
/// }
///
/// let arena = Arena::builder().limit(16 << 20).build()?;
/// let swap = Swap::builder().device(Megabyte(Mutex::new(vec![0; 1 << 20])), 1 << 20).build(&arena)?;
/// # Ok::<(), MmError>(())
/// ```
pub trait SwapDevice: Debug + Send + Sync {
    /// Writes `bytes`, or the first of them, at this offset, and says how many. May sleep.
    ///
    /// # Errors
    /// `ENOSPC`, `EDQUOT` and `EFBIG` say that there is no room: the page is kept, and others are tried later. After
    /// [`ErrorKind::Interrupted`] it is called again.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Fills `bytes`, or the first of them, with what lies at this offset, and says how many. May sleep.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl<D: SwapDevice + ?Sized> SwapDevice for Arc<D> {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        (**self).write_at(bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        (**self).read_at(bytes, offset)
    }
}

/// Why a block was not written or read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failed {
    /// The device is full.
    NoSpace,
    /// The device failed.
    Os(i32),
    /// There is no such block: the file has been cut off.
    Ended,
}

pub(super) fn write(device: &dyn SwapDevice, bytes: &Bytes, offset: u64) -> Result<(), Failed> {
    let mut done = 0;
    while done < bytes.len() {
        match device.write_at(&bytes[done..], offset + done as u64) {
            Ok(0) => return Err(Failed::Os(libc::EIO)),
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(match errno(&error) {
                    libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Failed::NoSpace,
                    errno => Failed::Os(errno),
                });
            }
        }
    }
    Ok(())
}

pub(super) fn read(device: &dyn SwapDevice, bytes: &mut Bytes, offset: u64) -> Result<(), Failed> {
    let mut done = 0;
    while done < bytes.len() {
        match device.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => return Err(Failed::Ended),
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Failed::Os(errno(&error))),
        }
    }
    Ok(())
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// What a swap file begins with, in a block of its own, so that it can be told from a file that holds something else.
const MARK: &[u8; 16] = b"slat swap file 1";

/// A file that one [`Swap`](super::Swap) uses at a time, of this process or of any.
#[derive(Debug)]
pub(super) struct SwapFile {
    file: File,
    /// Where it is, if it was made for this use.
    made: Option<PathBuf>,
}

impl SwapFile {
    /// Opens the file, or makes one that only this user can read, takes it into use, and empties it. Says how many bytes
    /// fit, as far as that is known.
    ///
    /// It is emptied once it is ours, and not by opening it: it may hold another's pages. One that holds anything but swap is
    /// emptied only to `overwrite` it.
    pub(super) fn open(path: &Path, overwrite: bool) -> Result<(Self, u64), MmError> {
        // Before it is opened, which some devices take for a command.
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
}

impl Drop for SwapFile {
    /// What it holds is guests' memory, and of no use any more. Where it cannot be emptied, the next user does it.
    fn drop(&mut self) {
        let _ = self.file.set_len(0);
        let is = |found: io::Result<fs::Metadata>| found.map(|found| (found.dev(), found.ino())).ok();
        // Before the lock is given up, and not what another has put there.
        if let Some(path) = &self.made
            && is(fs::symlink_metadata(path)) == is(self.file.metadata())
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// How large this process may make a file. Beyond, the kernel does not only refuse to write: it ends the process.
fn largest_file() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

fn os(call: &'static str, error: &io::Error) -> MmError {
    MmError::Os { call, errno: errno(error) }
}
