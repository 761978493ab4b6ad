//! Pages of slat-mm, pinned, and mapped contiguously.

use crate::region::Mapped;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use slat::{Hva, Idle, PAGE_SIZE, Span};
use slat_mm::{AddressSpace, Pinned};
use std::fmt;
use std::io;
use std::ptr;

/// Memory of an address space of slat-mm, pinned and mapped contiguously.
pub struct View {
    base: *mut u8,
    len: usize,
    pages: Pinned,
}

// SAFETY: the pointer is to this value's own mapping, which is used for volatile accesses only.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("base", &self.base).field("len", &self.len).finish_non_exhaustive()
    }
}

impl View {
    /// Brings in and pins all of `hvas` for writing, and maps it. May sleep.
    pub fn new(space: &AddressSpace, idle: &mut Idle, hvas: Span<Hva>) -> io::Result<Self> {
        let pages = space.pin(idle, hvas).map_err(io::Error::other)?;
        let memfd = space.arena().memfd().ok_or(io::ErrorKind::Unsupported)?;
        let len = hvas.len() as usize;
        // SAFETY: a new mapping without access, at an address that the system chooses.
        let base = unsafe {
            mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)?
        };
        let view = Self { base: base.cast(), len, pages };
        let mut at = 0;
        // One mapping per run of neighbours.
        for run in view.pages.frames().chunk_by(|a, b| a.0 + 1 == b.0) {
            let bytes = run.len() * PAGE_SIZE as usize;
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
            // SAFETY: inside the mapping made above. An error unmaps all of it.
            unsafe { mmap(view.base.add(at).cast(), bytes, access, flags, memfd, run[0].0 * PAGE_SIZE)? };
            at += bytes;
        }
        Ok(view)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; slices borrow the view, or a region that holds it.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

// SAFETY: mapped and pinned while it lives. Guests and devices share it; this process uses volatile accesses.
unsafe impl Mapped for View {
    fn as_ptr(&self) -> *mut u8 {
        self.base
    }

    fn len(&self) -> usize {
        self.len
    }
}
