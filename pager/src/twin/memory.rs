//! The memory of a twin: two mappings, like those of a VMM below and above its gap.

use super::image::{Image, WORDS};
use crate::uffd::{HUGE_PAGE, PAGE};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Memory that a userfaultfd will fill. It is unmapped when it is dropped.
#[derive(Debug)]
pub struct Memory {
    /// Image of its template.
    pub image: Image,
    /// First addresses of both parts.
    starts: [usize; 2],
    /// Pages of the first part.
    low: usize,
    file: Option<OwnedFd>,
    is_private: bool,
    page_size: usize,
}

impl Memory {
    /// Makes private or shared memory.
    pub fn new(image: Image, shared: bool) -> io::Result<Self> {
        let file = shared.then(|| memfd_create("twin", MemfdFlags::CLOEXEC)).transpose()?;
        if let Some(file) = &file {
            ftruncate(file, (image.pages * PAGE) as u64)?;
        }
        Self::of(image, file, false, PAGE)
    }

    /// The same in pages of 2 MiB, of which the kernel must have enough.
    pub fn huge(image: Image, shared: bool) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let file = shared.then(|| memfd_create("twin", flags)).transpose()?;
        if let Some(file) = &file {
            ftruncate(file, (image.pages * PAGE) as u64)?;
        }
        Self::of(image, file, false, HUGE_PAGE)
    }

    /// Makes a private mapping of the memory that clones share.
    pub fn clone_of(image: Image, file: &Path) -> io::Result<Self> {
        Self::of(image, Some(std::fs::File::open(file)?.into()), true, PAGE)
    }

    fn of(image: Image, file: Option<OwnedFd>, is_private: bool, page_size: usize) -> io::Result<Self> {
        let unit = page_size / PAGE;
        let low = image.pages * 3 / 4 / unit * unit;
        // Reserve huge pages now: a fault without one would end the process.
        let anonymous = if unit > 1 { MapFlags::HUGETLB | MapFlags::HUGE_2MB } else { MapFlags::NORESERVE };
        let kind = if is_private { MapFlags::PRIVATE | MapFlags::NORESERVE } else { MapFlags::SHARED };
        let map = |first: usize, pages: usize| {
            let (prot, size, any) = (ProtFlags::READ | ProtFlags::WRITE, pages * PAGE, std::ptr::null_mut());
            // SAFETY: a new mapping, where the kernel finds room.
            let start = unsafe {
                match &file {
                    Some(file) => mmap(any, size, prot, kind, file, (first * PAGE) as u64),
                    None => mmap_anonymous(any, size, prot, MapFlags::PRIVATE | anonymous),
                }
            }?;
            // SAFETY: it is this mapping's. Huge pages would be filled by the kernel, unasked.
            _ = unsafe { madvise(start, size, Advice::LinuxNoHugepage) };
            io::Result::Ok(start as usize)
        };
        let starts = [map(0, low)?, map(low, image.pages - low)?];
        Ok(Self { image, starts, low, file, is_private, page_size })
    }

    /// Returns the bytes of a page.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Returns whether it is a private mapping of a file.
    pub fn is_clone(&self) -> bool {
        self.is_private
    }

    /// Returns the bytes of its own: those that the process wrote, if it is a private mapping.
    pub fn own_bytes(&self) -> io::Result<u64> {
        let (text, mut kib, mut is_mine) = (std::fs::read_to_string("/proc/self/smaps")?, 0, false);
        for line in text.lines() {
            let word = line.split_whitespace().next().unwrap_or_default();
            if let Some((start, end)) = word.split_once('-') {
                let number = |text| usize::from_str_radix(text, 16).unwrap_or(0);
                let (start, end) = (number(start), number(end));
                // The kernel merges neighbouring mappings.
                is_mine = self.regions().iter().any(|(base, size, _)| {
                    let base = *base as usize;
                    start < base + *size as usize && base < end
                });
            } else if is_mine && word == "Anonymous:" {
                kib += line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
            }
        }
        Ok(kib << 10)
    }

    /// Returns the mapped file, if there is one.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Returns address, size and offset of both parts.
    pub fn regions(&self) -> [(u64, u64, u64); 2] {
        let bytes = |pages: usize| (pages * PAGE) as u64;
        let high = self.image.pages - self.low;
        [(self.starts[0] as u64, bytes(self.low), 0), (self.starts[1] as u64, bytes(high), bytes(self.low))]
    }

    /// Returns the number of pages from a page to the end of its part.
    pub fn left(&self, page: usize) -> usize {
        if page < self.low { self.low - page } else { self.image.pages - page }
    }

    /// Reads a page, and so touches it.
    ///
    /// # Safety
    /// Nothing writes to it meanwhile but the pager.
    pub unsafe fn read(&self, page: usize) -> [u64; WORDS] {
        // SAFETY: the page is mapped, and the caller has it.
        unsafe { self.at(page).read_volatile() }
    }

    /// Touches a page: reads one word of it.
    ///
    /// # Safety
    /// As of [`Memory::read`].
    pub unsafe fn touch(&self, page: usize) {
        // SAFETY: the page is mapped, and the caller has it.
        unsafe { self.at(page).cast::<u64>().read_volatile() };
    }

    /// Writes a page.
    ///
    /// # Safety
    /// Nothing else uses it meanwhile but the pager.
    pub unsafe fn write(&self, page: usize, words: &[u64; WORDS]) {
        // SAFETY: the page is mapped, and the caller has it.
        unsafe { self.at(page).write_volatile(*words) }
    }

    /// Gives pages of one part back. Private memory loses its content. Shared memory keeps it unless `removed` is set.
    ///
    /// # Safety
    /// Nothing else uses them meanwhile but the pager.
    pub unsafe fn give_back(&self, page: usize, pages: usize, removed: bool) -> io::Result<()> {
        assert!(pages <= self.left(page));
        let advice = if removed { Advice::LinuxRemove } else { Advice::LinuxDontNeed };
        // SAFETY: they are mapped, in one part, and the caller has them.
        Ok(unsafe { madvise(self.at(page).cast(), pages * PAGE, advice) }?)
    }

    fn at(&self, page: usize) -> *mut [u64; WORDS] {
        assert!(page < self.image.pages);
        let (start, page) =
            if page < self.low { (self.starts[0], page) } else { (self.starts[1], page - self.low) };
        (start + page * PAGE) as *mut [u64; WORDS]
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for (start, size, _) in self.regions() {
            // SAFETY: these are its mappings, and every borrow of it has ended.
            _ = unsafe { munmap(start as *mut _, size as usize) };
        }
    }
}
