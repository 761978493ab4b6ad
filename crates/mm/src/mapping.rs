//! Memory from the operating system: the only module that calls it.
//!
//! Mappings are lazily populated: a page takes memory when it is first used. To align a mapping, the module
//! reserves a larger range of addresses, places the mapping inside, and unmaps the rest.

use crate::error::MmError;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use slat::Level;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

/// Every mapping starts on a multiple of this.
const ALIGN: usize = Level::M2.bytes() as usize;

/// Zeroed memory of this process, readable and writable, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    memfd: Option<OwnedFd>,
}

// SAFETY: plain memory; the owners of its parts synchronize access to them.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory that other mappings and processes can share through its file descriptor. Anonymous if the system
    /// has no memfd.
    pub(crate) fn shared(len: usize) -> Result<Self, MmError> {
        let Ok(memfd) = memfd_create("slat-arena", MemfdFlags::CLOEXEC) else {
            return Self::anonymous(len);
        };
        ftruncate(&memfd, len as u64).map_err(os("ftruncate"))?;
        Self::place(len, Some(memfd))
    }

    /// Maps the first `len` bytes of an existing file, which must not be truncated below that. Discards its
    /// contents, so the bytes are zero.
    pub(crate) fn of_file(file: OwnedFd, len: usize) -> Result<Self, MmError> {
        let mapping = Self::place(len, Some(file))?;
        mapping.discard(0..len)?;
        Ok(mapping)
    }

    /// Private memory.
    pub(crate) fn anonymous(len: usize) -> Result<Self, MmError> {
        Self::place(len, None)
    }

    fn place(len: usize, memfd: Option<OwnedFd>) -> Result<Self, MmError> {
        let reserved = len.checked_add(ALIGN).ok_or(MmError::BadLimit(len as u64))?;
        let lazy = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the system chooses replaces no other.
        let found = unsafe { mmap_anonymous(ptr::null_mut(), reserved, ProtFlags::empty(), lazy) };
        let found = found.map_err(os("mmap"))?;
        let head = found.align_offset(ALIGN);
        let base = found.cast::<u8>().wrapping_add(head);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: every address lies in the reservation above, which only this function uses; unmapped parts
        // are not used again.
        let placed = unsafe {
            // `munmap` refuses an empty range, which is harmless.
            let _ = munmap(found, head);
            let _ = munmap(base.wrapping_add(len).cast(), ALIGN - head);
            match &memfd {
                Some(memfd) => {
                    let shared = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
                    mmap(base.cast(), len, access, shared, memfd, 0)
                }
                None => mmap_anonymous(base.cast(), len, access, lazy | MapFlags::FIXED),
            }
        };
        match placed.map(|placed| NonNull::new(placed.cast())) {
            Ok(Some(base)) => Ok(Self { base, len, memfd }),
            other => {
                // SAFETY: the rest of the reservation.
                let _ = unsafe { munmap(base.cast(), len) };
                Err(os("mmap")(other.err().unwrap_or(Errno::NOMEM)))
            }
        }
    }

    /// Asks the system to allocate this part on one node of the machine. Best effort.
    pub(crate) fn prefer(&self, part: Range<usize>, node: u32) {
        #[cfg(target_os = "linux")]
        if let Some(mask) = 1u64.checked_shl(node)
            && part.start <= part.end
            && part.end <= self.len
        {
            // rustix has no mbind.
            // SAFETY: a part of this mapping, whose contents and addresses do not change; the mask has 64 bits,
            // and the kernel reads one less than it is told.
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

    /// Returns the memory of this part, whole pages that nothing uses, to the system. It reads as zeroes
    /// afterwards, and takes memory again at its next use.
    pub(crate) fn discard(&self, part: Range<usize>) -> Result<(), MmError> {
        assert!(part.start <= part.end && part.end <= self.len, "a part of it");
        let len = part.end - part.start;
        let Some(memfd) = &self.memfd else {
            // SAFETY: a part of this mapping, whose frames are free.
            let gone =
                unsafe { madvise(self.base.as_ptr().add(part.start).cast(), len, Advice::LinuxDontNeed) };
            return gone.map_err(os("madvise"));
        };
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(memfd, hole, part.start as u64, len as u64).map_err(os("fallocate"))
    }

    /// Returns the first byte's address.
    #[inline(always)]
    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the length in bytes.
    #[inline(always)]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the file behind it.
    pub(crate) fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.memfd.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `place`. Users of its parts hold the owner.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn os(call: &'static str) -> impl Fn(Errno) -> MmError {
    move |errno| MmError::Os { call, errno: errno.raw_os_error() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_are_aligned_zeroed_and_lazy() {
        // Larger than any machine's memory: only addresses are used.
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

    /// Node 0 always exists; the others may not.
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
    fn discarded_pages_are_zero_and_their_neighbours_stay() {
        const PAGE: usize = 4096;
        for mapping in [Mapping::shared(ALIGN).unwrap(), Mapping::anonymous(ALIGN).unwrap()] {
            // SAFETY: inside the mapping, which only this test uses.
            let page = |page: usize| unsafe { &mut *mapping.base().as_ptr().add(page * PAGE) };
            (0..4).for_each(|number| *page(number) = 7);
            mapping.discard(PAGE..3 * PAGE).unwrap();
            assert_eq!([0, 1, 2, 3].map(|number| *page(number)), [7, 0, 0, 7]);
        }
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert!(matches!(Mapping::anonymous(1 << 60), Err(MmError::Os { call: "mmap", .. })));
    }
}
