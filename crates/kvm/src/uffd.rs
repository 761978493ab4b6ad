//! The userfaultfd of this process, which reports faults of the views and fills their pages.

use libc::Ioctl;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const API: u64 = 0xAA;

/// Encodes a request with this direction (1 write, 2 read, 3 both), number, and argument size.
const fn request(direction: u32, number: u32, size: usize) -> Ioctl {
    (direction << 30 | (size as u32) << 16 | (API as u32) << 8 | number) as Ioctl
}

const HANDSHAKE: Ioctl = request(3, 0x3F, 24);
const REGISTER: Ioctl = request(3, 0x00, 32);
const WAKE: Ioctl = request(2, 0x02, 16);
const PROTECT: Ioctl = request(3, 0x06, 24);
const CONTINUE: Ioctl = request(3, 0x07, 32);

/// Request to `/dev/userfaultfd` for a new userfaultfd.
const NEW: Ioctl = request(0, 0x00, 0);

/// Faults on missing pages.
pub(crate) const MISSING: u64 = 1;
/// Stores to write-protected pages.
pub(crate) const STORES: u64 = 2;
/// Faults on pages that are in the file but not in the page table.
pub(crate) const MINOR: u64 = 4;

/// Features: store flag, missing and minor faults of shared memory, and write protection of shared memory.
const FEATURES: u64 = 1 | 1 << 5 | 1 << 10 | 1 << 12;

/// Result of a request to fill pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Filled {
    /// This many bytes are mapped now, and waiting threads were woken.
    Bytes(usize),
    /// The first page is mapped already.
    Exists,
    /// The file has no memory for the first page yet.
    Hole,
    /// The address space is changing.
    Again,
}

/// A userfaultfd.
#[derive(Debug)]
pub(crate) struct Uffd(OwnedFd);

impl Uffd {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: the call takes numbers, and returns a new descriptor or -1. It includes kernel faults, which
        // KVM causes.
        let mut fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as i32;
        if fd < 0 {
            let device = std::fs::File::open("/dev/userfaultfd")?;
            // SAFETY: the request takes flags, and returns a new descriptor or -1.
            fd = unsafe { libc::ioctl(device.as_raw_fd(), NEW, flags) };
        }
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let uffd = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        uffd.ioctl(HANDSHAKE, &mut [API, FEATURES, 0])?;
        Ok(uffd)
    }

    /// Reports faults of these kinds in the range from now on.
    pub(crate) fn register(&self, start: usize, len: usize, kinds: u64) -> io::Result<()> {
        self.ioctl(REGISTER, &mut [start as u64, len as u64, kinds, 0])
    }

    /// Maps pages of the file from `start` on, and wakes threads that wait for them. Without `writable`, stores
    /// to them are reported.
    pub(crate) fn fill(&self, start: usize, len: usize, writable: bool) -> io::Result<Filled> {
        let mode = if writable { 0 } else { 2 };
        let mut fill = [start as u64, len as u64, mode, 0];
        let answer = self.ioctl(CONTINUE, &mut fill);
        let done = usize::try_from(fill[3] as i64).unwrap_or(0);
        match answer.map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => Ok(Filled::Bytes(done)),
            Err((Some(libc::EAGAIN), _)) if done > 0 => Ok(Filled::Bytes(done)),
            Err((Some(libc::EEXIST), _)) => Ok(Filled::Exists),
            Err((Some(libc::EFAULT), _)) => Ok(Filled::Hole),
            Err((Some(libc::EAGAIN), _)) => Ok(Filled::Again),
            Err((_, error)) => Err(error),
        }
    }

    /// Sets whether stores to mapped pages are reported. Wakes waiting threads when they no longer are.
    pub(crate) fn set_writable(&self, start: usize, len: usize, writable: bool) -> io::Result<()> {
        self.ioctl(PROTECT, &mut [start as u64, len as u64, u64::from(!writable)])
    }

    /// Wakes threads that wait for a page in this range; they fault again if it is missing.
    pub(crate) fn wake(&self, start: usize, len: usize) -> io::Result<()> {
        self.ioctl(WAKE, &mut [start as u64, len as u64])
    }

    /// Returns the next fault: its address, and whether it is a store.
    pub(crate) fn read(&self) -> io::Result<Option<(usize, bool)>> {
        const PAGEFAULT: u64 = 0x12;
        let mut message = [0u64; 4];
        // SAFETY: the kernel writes at most 32 bytes.
        let got = unsafe { libc::read(self.0.as_raw_fd(), message.as_mut_ptr().cast(), 32) };
        if got < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        let [event, flags, address, _] = message;
        Ok((event & 0xff == PAGEFAULT).then_some((address as usize, flags & 3 != 0)))
    }

    fn ioctl<const WORDS: usize>(&self, request: Ioctl, argument: &mut [u64; WORDS]) -> io::Result<()> {
        // SAFETY: each request above encodes the size of its argument, and callers pass that many 64-bit words.
        // The requests change only registered memory: mappings of a view.
        let answer = unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument.as_mut_ptr()) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
