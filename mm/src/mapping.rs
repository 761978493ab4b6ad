//! Memory from the operating system: the only room that calls it.
//!
//! Mappings are lazily populated: a page costs memory from its first use on. Alignment is had by reserving
//! addresses generously, placing the mapping inside, and giving the rest back.

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
        let Ok(memfd) = memfd_create("slat-arena", MemfdFlags::CLOEXEC) else {
            return Self::anonymous(len);
        };
        ftruncate(&memfd, len as u64).map_err(os("ftruncate"))?;
        Self::place(len, Some(memfd))
    }

    /// The first `len` bytes of a file that there is already, and that stays so long at least. They are zeroed: what it held
    /// goes back to the system.
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
        // SAFETY: a new mapping at an address of the system's choice replaces no other mapping.
        let found = unsafe { mmap_anonymous(ptr::null_mut(), reserved, ProtFlags::empty(), lazy) };
        let found = found.map_err(os("mmap"))?;
        let head = found.align_offset(ALIGN);
        let base = found.cast::<u8>().wrapping_add(head);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: every address touched lies in the reservation made above, which is ours alone; what is
        // unmapped is not used again.
        let placed = unsafe {
            // Nothing is there to be unmapped where it is aligned already; that is refused, and no matter.
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
                // SAFETY: what is left of the reservation.
                let _ = unsafe { munmap(base.cast(), len) };
                Err(os("mmap")(other.err().unwrap_or(Errno::NOMEM)))
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
            // rustix has no mbind.
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

    /// Gives the memory of this part back to the system: it is zero afterwards, and costs memory when it is used again. Whole
    /// pages, to which nothing has a right.
    pub(crate) fn discard(&self, part: Range<usize>) -> Result<(), MmError> {
        assert!(part.start <= part.end && part.end <= self.len, "a part of it");
        let len = part.end - part.start;
        let Some(memfd) = &self.memfd else {
            // SAFETY: a part of this mapping whose frames are free.
            let gone =
                unsafe { madvise(self.base.as_ptr().add(part.start).cast(), len, Advice::LinuxDontNeed) };
            return gone.map_err(os("madvise"));
        };
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(memfd, hole, part.start as u64, len as u64).map_err(os("fallocate"))
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
        // SAFETY: mapped by `place`. Users of a part of it hold the owner; a pointer that outlived the owner broke its rules.
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
    fn what_is_discarded_is_zero_and_its_neighbours_stay() {
        const PAGE: usize = 4096;
        for mapping in [Mapping::shared(ALIGN).unwrap(), Mapping::anonymous(ALIGN).unwrap()] {
            // SAFETY: inside of the mapping, which is ours.
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
