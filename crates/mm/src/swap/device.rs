//! Devices for blocks of 4 KiB: a file, or anything that can be written and read at an offset.
//!
//! A device may do part of a request, or be interrupted; it is called again for the rest.

use slat::PAGE_SIZE;
use std::fmt::Debug;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

pub(super) const PAGE: usize = PAGE_SIZE as usize;
/// The bytes of a page.
pub(super) type Bytes = [u8; PAGE];

/// A device that stores blocks. Each block is written before it is read, by one thread at a time; different
/// blocks concurrently. Give it to a [swap](super::SwapBuilder::device) in an [`Arc`] to keep access to it.
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
///
/// A function that panics has failed, as by `EIO`: the panic is caught, and goes no further.
pub trait SwapDevice: Debug + Send + Sync {
    /// Writes a prefix of `bytes` at this offset, and returns its length. May sleep.
    ///
    /// # Errors
    /// `ENOSPC`, `EDQUOT` and `EFBIG` mean that there is no room: the page stays, and others are tried later.
    /// [`ErrorKind::Interrupted`] makes the caller try again.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Fills a prefix of `bytes` from this offset, and returns its length. May sleep.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Like [`write_at`](Self::write_at), from several consecutive pieces, so that neighbouring blocks take one
    /// write. The default writes the first piece.
    fn write_vectored_at(&self, pieces: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        pieces.first().map_or(Ok(0), |piece| self.write_at(piece, offset))
    }

    /// Like [`read_at`](Self::read_at), into several consecutive pieces. The default reads the first piece.
    fn read_vectored_at(&self, pieces: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        pieces.first_mut().map_or(Ok(0), |piece| self.read_at(piece, offset))
    }

    /// Returns the file behind the device, and the offset of the device in it. If the kernel supports
    /// `io_uring`, batches of blocks then go to it; the other functions do the rest. `None`, the default, if
    /// there is no such file.
    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        None
    }
}

impl<D: SwapDevice + ?Sized> SwapDevice for Arc<D> {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        (**self).write_at(bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        (**self).read_at(bytes, offset)
    }

    fn write_vectored_at(&self, pieces: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        (**self).write_vectored_at(pieces, offset)
    }

    fn read_vectored_at(&self, pieces: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        (**self).read_vectored_at(pieces, offset)
    }

    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        (**self).file()
    }
}

/// Why a block was not written or read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failed {
    /// The device is full.
    NoSpace,
    /// The device failed.
    Os(i32),
    /// The block does not exist: the file was truncated.
    Ended,
}

/// Result for each page of a run of blocks.
pub(super) type Outcome = Vec<Result<(), Failed>>;

/// Writes these pages to consecutive blocks, the first at `offset`. After a page fails the next is tried,
/// unless the device is full.
///
/// # Safety
/// The pages are readable, and no thread writes to them.
pub(super) unsafe fn write(device: &dyn SwapDevice, pages: &[NonNull<Bytes>], offset: u64) -> Outcome {
    each(pages.len(), |page, within| {
        // SAFETY: the caller keeps the condition.
        let slice = |page: &NonNull<Bytes>| IoSlice::new(unsafe { &*page.as_ptr() });
        let mut pieces: Vec<_> = pages[page..].iter().map(slice).collect();
        pieces[0].advance(within);
        match device.write_vectored_at(&pieces, offset + (page * PAGE + within) as u64) {
            Ok(0) => Err(io::Error::from_raw_os_error(libc::EIO)),
            done => done,
        }
    })
}

/// Reads consecutive blocks into these pages.
///
/// # Safety
/// The pages are writable, and no other thread uses them.
pub(super) unsafe fn read(device: &dyn SwapDevice, pages: &[NonNull<Bytes>], offset: u64) -> Outcome {
    each(pages.len(), |page, within| {
        // SAFETY: the caller keeps the condition.
        let slice = |page: &NonNull<Bytes>| IoSliceMut::new(unsafe { &mut *page.as_ptr() });
        let mut pieces: Vec<_> = pages[page..].iter().map(slice).collect();
        pieces[0].advance(within);
        device.read_vectored_at(&mut pieces, offset + (page * PAGE + within) as u64)
    })
}

/// Calls `ask` until all pages are done or have failed. `ask` starts at a page and a byte of it. If it panics, the device
/// has failed: the panic may not unwind through a caller in the middle of a batch.
fn each(pages: usize, mut ask: impl FnMut(usize, usize) -> io::Result<usize>) -> Outcome {
    let mut outcome = Outcome::new();
    let mut within = 0;
    while outcome.len() < pages {
        let asked = catch_unwind(AssertUnwindSafe(|| ask(outcome.len(), within)));
        let failed = match asked.unwrap_or_else(|_| Err(io::Error::from_raw_os_error(libc::EIO))) {
            Ok(0) => Failed::Ended,
            Ok(count) => {
                within += count;
                outcome.resize((outcome.len() + within / PAGE).min(pages), Ok(()));
                within %= PAGE;
                continue;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => match errno(&error) {
                libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Failed::NoSpace,
                errno => Failed::Os(errno),
            },
        };
        within = 0;
        let until = if failed == Failed::NoSpace { pages } else { outcome.len() + 1 };
        outcome.resize(until, Err(failed));
    }
    outcome
}

pub(super) fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
