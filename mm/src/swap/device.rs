//! Where blocks of 4 KiB go: a file, or anything that can be written and read at an offset.
//!
//! A device may do a part of what it was asked to, or be interrupted: it is asked again for the rest.

use slat::PAGE_SIZE;
use std::fmt::Debug;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
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

    /// The same as [`write_at`](Self::write_at), from several pieces in a row, so that neighbouring blocks are one write. A device
    /// that does not say how writes the first piece.
    fn write_vectored_at(&self, pieces: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        pieces.first().map_or(Ok(0), |piece| self.write_at(piece, offset))
    }

    /// The same as [`read_at`](Self::read_at), into several pieces in a row.
    fn read_vectored_at(&self, pieces: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        pieces.first_mut().map_or(Ok(0), |piece| self.read_at(piece, offset))
    }

    /// The file that it is, and where in it offset 0 lies: the kernel is then asked for many blocks at once (`io_uring`), as far as
    /// it offers that. The other functions do what was left over. Where there is no such file, there is none to be asked.
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
    /// There is no such block: the file has been cut off.
    Ended,
}

/// What became of each page of a run of blocks.
pub(super) type Outcome = Vec<Result<(), Failed>>;

/// Writes these pages to blocks in a row, of which the first is at `offset`. A page that the device fails to write does not keep it
/// from being asked for the next; a full device is not asked on.
///
/// # Safety
/// The pages can be read, and no thread writes to them.
pub(super) unsafe fn write(device: &dyn SwapDevice, pages: &[NonNull<Bytes>], offset: u64) -> Outcome {
    each(pages.len(), |page, within| {
        // SAFETY: the caller's word.
        let slice = |page: &NonNull<Bytes>| IoSlice::new(unsafe { &*page.as_ptr() });
        let mut pieces: Vec<_> = pages[page..].iter().map(slice).collect();
        pieces[0].advance(within);
        match device.write_vectored_at(&pieces, offset + (page * PAGE + within) as u64) {
            Ok(0) => Err(io::Error::from_raw_os_error(libc::EIO)),
            done => done,
        }
    })
}

/// The same for reading them.
///
/// # Safety
/// The pages can be written to, and no other thread uses them.
pub(super) unsafe fn read(device: &dyn SwapDevice, pages: &[NonNull<Bytes>], offset: u64) -> Outcome {
    each(pages.len(), |page, within| {
        // SAFETY: the caller's word.
        let slice = |page: &NonNull<Bytes>| IoSliceMut::new(unsafe { &mut *page.as_ptr() });
        let mut pieces: Vec<_> = pages[page..].iter().map(slice).collect();
        pieces[0].advance(within);
        device.read_vectored_at(&mut pieces, offset + (page * PAGE + within) as u64)
    })
}

/// Asks until all of so many pages are done, or have failed. `ask` begins at a page, and a byte of it.
fn each(pages: usize, mut ask: impl FnMut(usize, usize) -> io::Result<usize>) -> Outcome {
    let mut outcome = Outcome::new();
    let mut within = 0;
    while outcome.len() < pages {
        let failed = match ask(outcome.len(), within) {
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
