//! A userfaultfd, in the process that made it, or in a pager.

pub(crate) mod abi;
mod interrupted;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, readlink};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of a page of hugetlbfs.
pub const HUGE_PAGE: usize = 2 << 20;

/// Features of a userfaultfd besides faults of anonymous memory. The bits are the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// Events for `madvise(MADV_DONTNEED)` and `MADV_REMOVE`.
    pub const REMOVE: Self = Self(1 << 3);
    /// Faults of shared memory.
    pub const SHARED: Self = Self(1 << 5);
    /// Faults of pages that are in shared memory, but not in the page table.
    pub const MINOR: Self = Self(1 << 10);
    /// [`Uffd::poison`].
    pub const POISON: Self = Self(1 << 14);

    /// Asynchronous write protection: the kernel permits writes to protected pages itself, and notes them.
    pub const WRITES_UNASKED: Self = Self(1 << 15);

    /// Returns whether all features of `others` are present.
    pub fn has(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// Returns the union of the features.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Reason why a page could not be filled, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// An event must be read first, or its change is still under way. Read, and try again.
    #[error("the guest's memory changes just now")]
    Again,
    /// The page is already present. Wake the threads that wait for it.
    #[error("the page is there already")]
    Exists,
    /// Nothing is mapped and registered at the address any more.
    #[error("nothing is registered at this address")]
    Unmapped,
    /// The guest's process has ended.
    #[error("the process has ended")]
    Gone,
    /// Something else.
    #[error("the kernel refused a page: {0}")]
    Other(io::Error),
}

/// Result of a request: bytes that were filled, and why not more.
pub type Filled = (usize, Option<Refusal>);

/// A userfaultfd. It belongs to the process that made it. That process may send the descriptor to another one, the
/// pager.
#[derive(Debug)]
pub struct Uffd(OwnedFd);

impl Uffd {
    /// Makes a userfaultfd of this process, close-on-exec and non-blocking, for faults of code in user space. Needs no
    /// privilege.
    ///
    /// # Errors
    /// `EPERM`, `ENOSYS`: this kernel offers none to this user. `EINVAL`: it lacks one of `features`.
    pub fn new(features: Features) -> io::Result<Self> {
        const USER_MODE_ONLY: i32 = 1;
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: the call takes numbers, and returns a new descriptor or -1.
        let mut fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags | USER_MODE_ONLY) } as i32;
        if fd < 0 {
            // If seccomp or the kernel has no such call.
            let device = std::fs::File::open("/dev/userfaultfd")?;
            // SAFETY: the request takes flags, and returns a new descriptor or -1.
            fd = unsafe { libc::ioctl(device.as_raw_fd(), abi::NEW, flags) };
        }
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is new, and nothing else owns it.
        let uffd = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        let mut handshake = abi::Handshake { api: abi::API, features: features.0, ioctls: 0 };
        uffd.ioctl(abi::HANDSHAKE, &mut handshake)?;
        Ok(uffd)
    }

    /// Takes a userfaultfd that another process sent. Makes it non-blocking.
    ///
    /// # Errors
    /// `InvalidInput`: the descriptor is something else.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        Self::check(&fd)?;
        let uffd = Self(fd);
        uffd.set_nonblocking()?;
        Ok(uffd)
    }

    /// Returns an error if the descriptor is no userfaultfd.
    pub(crate) fn check(fd: &OwnedFd) -> io::Result<()> {
        let name = readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new())?;
        if name.to_bytes() != b"anon_inode:[userfaultfd]" {
            let what = format!("{} is no userfaultfd", name.to_string_lossy());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Ok(())
    }

    /// Sets `O_NONBLOCK`, without which the kernel reports no events to `poll`, but an error at once. The flag belongs to
    /// the open file, so the guest's process may clear it again at any time.
    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        Ok(fcntl_setfl(&self.0, fcntl_getfl(&self.0)? | OFlags::NONBLOCK)?)
    }

    /// Returns the features that its process requested, as the kernel reports them.
    pub fn features(&self) -> io::Result<Features> {
        let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.0.as_raw_fd()))?;
        let line = about.lines().find_map(|line| line.strip_prefix("API:"));
        // The line has the interface's version, the features, and its requests, in hexadecimal.
        let features = line.and_then(|line| u64::from_str_radix(line.trim().split(':').nth(1)?, 16).ok());
        features
            .map(Features)
            .ok_or_else(|| io::Error::other("the kernel says nothing of a userfaultfd's features"))
    }

    /// Registers a range of this process for faults of missing pages and, with `minor`, of pages of shared memory that
    /// are not in the page table.
    pub fn register(&self, start: u64, len: u64, minor: bool) -> io::Result<()> {
        let mode = abi::MODE_MISSING | if minor { abi::MODE_MINOR } else { 0 };
        let mut register = abi::Register { range: abi::Range { start, len }, mode, ioctls: 0 };
        self.ioctl(abi::REGISTER, &mut register)
    }

    /// Also requests faults of pages that are in the shared memory, but not in the page table, whatever the guest's
    /// process requested.
    pub fn trace(&self, start: u64, len: u64) -> io::Result<()> {
        // Keeps the modes of an earlier pager: a protection marker must not exist without its mode.
        for mode in [abi::MODE_WP, 0] {
            let mode = abi::MODE_MISSING | abi::MODE_MINOR | mode;
            let mut register = abi::Register { range: abi::Range { start, len }, mode, ioctls: 0 };
            match self.ioctl(abi::REGISTER, &mut register) {
                Err(_) if mode & abi::MODE_WP != 0 => {}
                answer => return answer,
            }
        }
        unreachable!("the second try returns")
    }

    /// Also requests faults of writes to protected pages of this range. Any process with the userfaultfd may do so,
    /// whatever the guest's process requested. Returns whether the memory is shared memory; then it also requests
    /// faults of pages that are in it, but not in the page table.
    pub fn track(&self, start: u64, len: u64) -> io::Result<bool> {
        let mode = abi::MODE_MISSING | abi::MODE_WP;
        // Private memory has no minor faults.
        for (mode, is_shared) in [(mode | abi::MODE_MINOR, true), (mode, false)] {
            let mut register = abi::Register { range: abi::Range { start, len }, mode, ioctls: 0 };
            match self.ioctl(abi::REGISTER, &mut register) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) && is_shared => {}
                answer => return answer.map(|()| is_shared),
            }
        }
        unreachable!("the second try returns")
    }

    /// Protects the present pages of this range: the next write to each one faults. In shared memory this includes
    /// later pages.
    ///
    /// # Errors
    /// `EAGAIN`: an event waits to be read.
    pub fn protect(&self, start: u64, len: u64) -> io::Result<()> {
        self.ioctl(abi::WRITEPROTECT, &mut abi::Protect { range: abi::Range { start, len }, mode: 1 })
    }

    /// Ends the protection of this range, and wakes the threads that wait for that.
    ///
    /// # Errors
    /// As of [`Uffd::protect`].
    pub fn unprotect(&self, start: u64, len: u64) -> io::Result<()> {
        self.ioctl(abi::WRITEPROTECT, &mut abi::Protect { range: abi::Range { start, len }, mode: 0 })
    }

    /// Returns whether a removal is under way: its event waits to be read, or the kernel is removing its pages.
    pub(crate) fn is_changing(&self) -> bool {
        // The kernel checks that before the argument, which is never valid.
        matches!(self.fill(abi::ZEROPAGE, 0, 0, 0).1, Some(Refusal::Again))
    }

    /// Fills missing pages from `start` on with these bytes, and wakes the waiting threads.
    pub fn copy(&self, start: u64, bytes: &[u8]) -> Filled {
        self.copy_as(start, bytes, false)
    }

    /// As [`Uffd::copy`]; protects the pages in the same step if `is_protected`.
    pub(crate) fn copy_as(&self, start: u64, bytes: &[u8], is_protected: bool) -> Filled {
        let (src, len) = (bytes.as_ptr() as u64, bytes.len() as u64);
        let mode = if is_protected { abi::FILL_WP } else { 0 };
        let mut copy = abi::Copy { dst: start, src, len, mode, done: 0 };
        let answer = self.ioctl(abi::COPY, &mut copy);
        filled(copy.done, answer)
    }

    /// Fills missing pages with zeros, and wakes the waiting threads.
    pub fn zero(&self, start: u64, len: u64) -> Filled {
        self.fill(abi::ZEROPAGE, start, len, 0)
    }

    /// Maps pages that are already in the shared memory, and wakes the waiting threads.
    pub fn resume(&self, start: u64, len: u64) -> Filled {
        self.resume_as(start, len, false)
    }

    /// As [`Uffd::resume`]; protects the pages in the same step if `is_protected`.
    pub(crate) fn resume_as(&self, start: u64, len: u64, is_protected: bool) -> Filled {
        self.fill(abi::CONTINUE, start, len, if is_protected { abi::FILL_WP } else { 0 })
    }

    /// Marks missing pages as lost: a thread that touches one gets SIGBUS, as after a memory error.
    pub fn poison(&self, start: u64, len: u64) -> Filled {
        self.fill(abi::POISON, start, len, 0)
    }

    /// Wakes the threads that wait for a page in this range. If the page is still missing, they fault again.
    pub fn wake(&self, start: u64, len: u64) -> io::Result<()> {
        self.ioctl(abi::WAKE, &mut abi::Range { start, len })
    }

    /// Reads events into `messages`. Returns their number. Does not wait for one, also if the guest's process cleared
    /// `O_NONBLOCK` or took the event; on kernels before 6.10 it may then wait for some milliseconds.
    pub(crate) fn read(&self, messages: &mut [abi::Message]) -> io::Result<usize> {
        /// This kernel refuses the flag of a single read.
        static IS_OLD: AtomicBool = AtomicBool::new(false);
        if !IS_OLD.load(Ordering::Relaxed) {
            match self.read_at_once(messages) {
                Err(error) if lacks_the_flag(&error) => IS_OLD.store(true, Ordering::Relaxed),
                got => return got,
            }
        }
        self.read_interrupted(messages)
    }

    /// Reads by a call that never waits, whatever the flags of the open file are.
    fn read_at_once(&self, messages: &mut [abi::Message]) -> io::Result<usize> {
        let part = libc::iovec { iov_base: messages.as_mut_ptr().cast(), iov_len: size_of_val(messages) };
        // SAFETY: the kernel writes at most so many bytes there, and any bytes are messages.
        let got = unsafe { libc::preadv2(self.0.as_raw_fd(), &raw const part, 1, -1, libc::RWF_NOWAIT) };
        count(usize::try_from(got).map_err(|_| io::Error::last_os_error()))
    }

    /// Reads by a call that a signal interrupts if it waits.
    fn read_interrupted(&self, messages: &mut [abi::Message]) -> io::Result<usize> {
        count(interrupted::read(self.0.as_fd(), messages))
    }

    fn fill(&self, request: libc::Ioctl, start: u64, len: u64, mode: u64) -> Filled {
        let mut fill = abi::Fill { range: abi::Range { start, len }, mode, done: 0 };
        let answer = self.ioctl(request, &mut fill);
        filled(fill.done, answer)
    }

    fn ioctl<T>(&self, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
        // SAFETY: `request` says that its argument is a `T` (see `abi`). It changes memory of the process to which
        // the userfaultfd belongs, and only where that registered it.
        let answer = unsafe { libc::ioctl(self.0.as_raw_fd(), request, std::ptr::from_mut(argument)) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the number of events in so many bytes; none if the read would have waited.
fn count(bytes: io::Result<usize>) -> io::Result<usize> {
    match bytes {
        Ok(bytes) => Ok(bytes / size_of::<abi::Message>()),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Returns whether the kernel (`EOPNOTSUPP`), or a filter of system calls, refuses reads with a flag.
fn lacks_the_flag(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM))
}

/// Interprets the answer. A request that was interrupted halfway returns EAGAIN and its progress; the next request from
/// there returns the reason.
fn filled(done: i64, answer: io::Result<()>) -> Filled {
    let done = usize::try_from(done).unwrap_or(0);
    let Err(error) = answer else { return (done, None) };
    let refusal = match error.raw_os_error() {
        Some(libc::EAGAIN) if done > 0 => return (done, None),
        Some(libc::EAGAIN) => Refusal::Again,
        Some(libc::EEXIST) => Refusal::Exists,
        Some(libc::ENOENT) => Refusal::Unmapped,
        Some(libc::ESRCH) => Refusal::Gone,
        _ => Refusal::Other(error),
    };
    (done, Some(refusal))
}

#[cfg(test)]
mod tests;
