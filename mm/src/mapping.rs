//! Memory from the operating system: the only room that calls it.
//!
//! Mappings are lazily populated: a page costs memory from its first use on. Alignment is had by reserving
//! addresses generously, placing the mapping inside, and giving the rest back.

use crate::error::MmError;
use slat::Level;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

/// Every mapping starts on a multiple of this.
const ALIGN: usize = Level::M2.bytes() as usize;

/// Zeroed memory of this process, readable and writable, until it is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    memfd: Option<OwnedFd>,
}

// SAFETY: plain memory; who reads and writes which part when is decided by the owners of the parts.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory that other mappings and processes can share through its file descriptor. Anonymous where the
    /// system has no memfd.
    pub(crate) fn shared(len: usize) -> Result<Self, MmError> {
        // SAFETY: a terminated name; the call has no other precondition.
        let fd = unsafe { libc::memfd_create(c"slat-arena".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Self::anonymous(len);
        }
        // SAFETY: just opened, and nobody else's.
        let memfd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an open descriptor.
        if unsafe { libc::ftruncate(fd, len as libc::off_t) } != 0 {
            return Err(os("ftruncate"));
        }
        Self::place(len, Some(memfd))
    }

    /// Private memory.
    pub(crate) fn anonymous(len: usize) -> Result<Self, MmError> {
        Self::place(len, None)
    }

    fn place(len: usize, memfd: Option<OwnedFd>) -> Result<Self, MmError> {
        let reserved = len.checked_add(ALIGN).ok_or(MmError::BadLimit(len as u64))?;
        let lazy = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the system's choice disturbs nobody.
        let found = unsafe { libc::mmap(ptr::null_mut(), reserved, libc::PROT_NONE, lazy, -1, 0) };
        if found == libc::MAP_FAILED {
            return Err(os("mmap"));
        }
        let head = found.align_offset(ALIGN);
        let base = found.cast::<u8>().wrapping_add(head);
        let (flags, fd) = match &memfd {
            Some(memfd) => (libc::MAP_SHARED | libc::MAP_NORESERVE, memfd.as_raw_fd()),
            None => (lazy, -1),
        };
        // SAFETY: every address touched lies in the reservation made above, which is ours alone; what is
        // unmapped is not used again.
        let placed = unsafe {
            libc::munmap(found, head);
            libc::munmap(base.wrapping_add(len).cast(), ALIGN - head);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(base.cast(), len, access, flags | libc::MAP_FIXED, fd, 0)
        };
        match NonNull::new(placed.cast()) {
            Some(base) if placed != libc::MAP_FAILED => Ok(Self { base, len, memfd }),
            _ => {
                let error = os("mmap");
                // SAFETY: what is left of the reservation.
                unsafe { libc::munmap(base.cast(), len) };
                Err(error)
            }
        }
    }

    /// Asks the system to take this part of it from one of the machine's nodes. Best effort: where it will not,
    /// the memory comes from anywhere.
    pub(crate) fn prefer(&self, part: Range<usize>, node: u32) {
        #[cfg(target_os = "linux")]
        if let Some(mask) = 1u64.checked_shl(node)
            && part.start <= part.end
            && part.end <= self.len
        {
            // SAFETY: a part of our mapping, of which contents and addresses stay; the mask has 64 bits, and the
            // kernel counts one more than it reads.
            unsafe {
                let start = self.base.as_ptr().add(part.start);
                libc::syscall(
                    libc::SYS_mbind,
                    start,
                    part.end - part.start,
                    libc::MPOL_PREFERRED,
                    &raw const mask,
                    u64::BITS as usize + 1,
                    0,
                );
            }
        }
    }

    /// Where it begins.
    #[inline(always)]
    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes in it.
    #[inline(always)]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The file behind it.
    pub(crate) fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.memfd.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `place`; whoever had a part of it is gone, or broke the owner's rules.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn os(call: &'static str) -> MmError {
    MmError::Os { call, errno: std::io::Error::last_os_error().raw_os_error().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_are_aligned_zeroed_and_lazy() {
        // Far more than any machine has: only addresses are used.
        for mapping in [Mapping::shared(1 << 40).unwrap(), Mapping::anonymous(1 << 40).unwrap()] {
            assert_eq!(mapping.base().as_ptr().addr() % ALIGN, 0);
            let last = mapping.base().as_ptr().wrapping_add(mapping.len() - 1);
            // SAFETY: the last byte of the mapping.
            unsafe {
                assert_eq!(last.read(), 0);
                last.write(7);
                assert_eq!(last.read(), 7);
            }
        }
    }

    /// Node 0 is always there; the others need not be.
    #[test]
    fn a_preference_changes_no_contents() {
        let mapping = Mapping::shared(4 * ALIGN).unwrap();
        // SAFETY: the first byte of the mapping, before and after.
        unsafe { mapping.base().as_ptr().write(7) };
        for node in [0, 1, 63, 64, 1000] {
            mapping.prefer(0..2 * ALIGN, node);
        }
        mapping.prefer(0..5 * ALIGN, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { mapping.base().as_ptr().read() }, 7);
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert!(matches!(Mapping::anonymous(1 << 60), Err(MmError::Os { call: "mmap", .. })));
    }
}
