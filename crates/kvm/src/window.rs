//! One memslot's window: the addresses of this process that KVM's memslot points to, and their mappings.
//!
//! ```text
//! guest frames      0        1        2        3        4        5       …
//! the window        blank    frame 9  frame 10 blank    frame 7  blank       consecutive addresses
//! mappings          ───────  ─────────────────  ───────  ───────  ──────      one for each run of neighbours
//! ```
//! A page is **blank** (anonymous memory that is never filled) or mapped to a frame of the arena's file. A
//! mapping is not yet a translation: only userfaultfd fills its page-table entries. A flush clears the entries
//! and keeps the mapping. So a page that faults again with the same frame costs one call.

use crate::error::KvmError;
use crate::uffd::{MINOR, MISSING, STORES, Uffd};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};
use slat::{Gfn, Level, PAGE_SIZE, Pfn, SlotId, Span};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr;

const PAGE: usize = PAGE_SIZE as usize;
const HUGE: usize = Level::M2.bytes() as usize;
/// Not a frame of any arena.
const BLANK: u64 = 0;

/// The window of one memslot.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) id: SlotId,
    /// Guest frames of slat's memslot.
    pub(crate) gfns: Span<Gfn>,
    /// Whether it is exempt from the budget.
    pub(crate) kept: bool,
    base: usize,
    /// The frame mapped at each page, or [`BLANK`].
    frames: Vec<u64>,
    /// Number of places where one mapping ends and another begins.
    borders: usize,
}

impl Window {
    /// Reserves addresses for a memslot, closed: accesses fail with `EFAULT` until they are
    /// [opened](Self::open). The alignment to 2 MiB is that of the guest frames.
    pub(crate) fn reserve(id: SlotId, gfns: Span<Gfn>) -> Result<Self, KvmError> {
        let pages = gfns.len() as usize;
        let len = pages * PAGE;
        let lazy = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the system chooses; its unmapped parts were never used.
        unsafe {
            let found = mmap_anonymous(ptr::null_mut(), len + HUGE, ProtFlags::empty(), lazy)
                .map_err(KvmError::os("mmap"))?;
            let head = (gfns.start.gpa().0 as usize).wrapping_sub(found.addr()) % HUGE;
            let base = found.wrapping_byte_add(head);
            for (start, len) in [(found, head), (base.wrapping_byte_add(len), HUGE - head)] {
                if len > 0 {
                    munmap(start, len).map_err(KvmError::os("munmap"))?;
                }
            }
            Ok(Self { id, gfns, kept: false, base: base.addr(), frames: vec![BLANK; pages], borders: 0 })
        }
    }

    /// Reports faults to `uffd` from now on.
    pub(crate) fn open(&mut self, uffd: &Uffd) -> Result<(), KvmError> {
        self.blank(uffd, 0..self.frames.len())
    }

    /// Returns its first address.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Returns the number of its mappings.
    pub(crate) fn mappings(&self) -> usize {
        self.borders + 1
    }

    /// Returns the page at an address.
    pub(crate) fn page_at(&self, address: usize) -> Option<usize> {
        let page = address.checked_sub(self.base)? / PAGE;
        (page < self.frames.len()).then_some(page)
    }

    /// Returns the pages of these guest frames.
    pub(crate) fn pages_of(&self, gfns: Span<Gfn>) -> Range<usize> {
        let part = self.gfns.clamp(&gfns);
        if part.is_empty() {
            return 0..0;
        }
        (part.start.0 - self.gfns.start.0) as usize..(part.end.0 - self.gfns.start.0) as usize
    }

    /// Returns the first address and the length in bytes of these pages.
    pub(crate) fn addresses(&self, pages: &Range<usize>) -> (usize, usize) {
        (self.base + pages.start * PAGE, pages.len() * PAGE)
    }

    /// Drops these pages from KVM's tables and this process's; accesses fault again. When this returns, the
    /// kernel's MMU notifiers have notified KVM.
    pub(crate) fn forget(&self, pages: &Range<usize>) -> Result<(), KvmError> {
        let (start, len) = self.addresses(pages);
        // SAFETY: pages of this window's mapping, whose contents are in the arena's file.
        unsafe { madvise(ptr::without_provenance_mut(start), len, Advice::LinuxDontNeed) }
            .map_err(KvmError::os("madvise"))
    }

    /// Whether these frames are mapped at these pages.
    pub(crate) fn shows(&self, pages: &Range<usize>, first: Pfn) -> bool {
        self.frames[pages.clone()].iter().zip(first.0..).all(|(&frame, expected)| frame == expected)
    }

    /// Maps frames of the arena's file at these pages; read-only at first if stores must be reported. An access
    /// before [`make_writable`](Self::make_writable) finds the right frames, or fails with `EFAULT`.
    pub(crate) fn map(
        &mut self,
        uffd: &Uffd,
        file: BorrowedFd<'_>,
        pages: &Range<usize>,
        first: Pfn,
        writable: bool,
    ) -> Result<(), KvmError> {
        let (start, len) = self.addresses(pages);
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: inside the window, which this value owns.
        unsafe { mmap(ptr::without_provenance_mut(start), len, access, flags, file, first.address()) }
            .map_err(KvmError::os("mmap"))?;
        self.note(pages, Some(first));
        uffd.register(start, len, MISSING | MINOR | STORES).map_err(KvmError::io("UFFDIO_REGISTER"))
    }

    /// Lets userfaultfd decide about stores to these pages, after a [`map`](Self::map) for reading.
    pub(crate) fn make_writable(&self, pages: &Range<usize>) -> Result<(), KvmError> {
        let (start, len) = self.addresses(pages);
        // SAFETY: inside the window, which this value owns.
        unsafe {
            mprotect(ptr::without_provenance_mut(start), len, MprotectFlags::READ | MprotectFlags::WRITE)
        }
        .map_err(KvmError::os("mprotect"))
    }

    /// Replaces the mappings of these pages by a blank one. An access meanwhile fails with `EFAULT`.
    pub(crate) fn blank(&mut self, uffd: &Uffd, pages: Range<usize>) -> Result<(), KvmError> {
        self.shut(&pages)?;
        let (start, len) = self.addresses(&pages);
        uffd.register(start, len, MISSING).map_err(KvmError::io("UFFDIO_REGISTER"))?;
        self.make_writable(&pages)
    }

    /// Removes the mappings of these pages. Accesses fail with `EFAULT` until they are [blank](Self::blank).
    pub(crate) fn shut(&mut self, pages: &Range<usize>) -> Result<(), KvmError> {
        let (start, len) = self.addresses(pages);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: inside the window, which this value owns.
        unsafe { mmap_anonymous(ptr::without_provenance_mut(start), len, ProtFlags::empty(), flags) }
            .map_err(KvmError::os("mmap"))?;
        self.note(pages, None);
        Ok(())
    }

    /// Returns the next 2 MiB from page `from` on that have several mappings.
    pub(crate) fn next_fragmented(&self, from: usize) -> Option<Range<usize>> {
        const PIECE: usize = HUGE / PAGE;
        if self.kept {
            return None;
        }
        let mut piece = from..self.frames.len().min(from + PIECE);
        while !piece.is_empty() {
            if piece.clone().any(|page| self.is_border(page)) {
                return Some(piece);
            }
            piece = piece.end..self.frames.len().min(piece.end + PIECE);
        }
        None
    }

    /// Keeps its addresses reserved, without memory.
    pub(crate) fn leak(mut self) {
        let len = std::mem::take(&mut self.frames).len() * PAGE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: inside the window, which this value owns.
        let _ =
            unsafe { mmap_anonymous(ptr::without_provenance_mut(self.base), len, ProtFlags::empty(), flags) };
        std::mem::forget(self);
    }

    fn note(&mut self, pages: &Range<usize>, first: Option<Pfn>) {
        let around = pages.start..pages.end + 1;
        let count = |window: &Self| around.clone().filter(|&page| window.is_border(page)).count();
        self.borders -= count(self);
        for (frame, now) in self.frames[pages.clone()].iter_mut().zip(first.map_or(BLANK, |pfn| pfn.0)..) {
            *frame = if first.is_some() { now } else { BLANK };
        }
        self.borders += count(self);
    }

    /// Whether another mapping begins at this page.
    fn is_border(&self, page: usize) -> bool {
        if page == 0 || page >= self.frames.len() {
            return false;
        }
        match (self.frames[page - 1], self.frames[page]) {
            (BLANK, BLANK) => false,
            (BLANK, _) | (_, BLANK) => true,
            (before, frame) => before + 1 != frame,
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: this value owns the range. KVM's memslot, which pointed here, was deleted.
        let _ = unsafe { munmap(ptr::without_provenance_mut(self.base), self.frames.len() * PAGE) };
    }
}
