//! All windows of a VM: for slat, KVM is the TLB of its vCPUs, and this is its contents.
//!
//! Pages are mapped and dropped under one lock. A flush comes after its edits are in slat's tables, and the
//! lookup in the tables is done under the lock. So a flush drops every page that was looked up before it, and a
//! later lookup sees the edited tables.

use crate::error::KvmError;
use crate::uffd::{Filled, Uffd};
use crate::window::Window;
use parking_lot::Mutex;
use slat::table::formats::Ept4NoAd;
use slat::{Access, Format, Gfn, Host, Idle, PAGE_SIZE, Pfn, SlotId, Span, Vm};
use slat_mm::Arena;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The format of slat's tables, which no hardware walks. It has no Accessed and Dirty bits, since nothing would
/// set them.
pub type Tables = Ept4NoAd;

/// Counts of pager threads and flushes.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) faults: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) filled: AtomicU64,
    pub(crate) mapped: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) evicted: AtomicU64,
}

/// The windows of one VM.
#[derive(Debug)]
pub(crate) struct View {
    /// Dropped before `uffd`, since without that faults would fill pages.
    windows: Mutex<Windows>,
    pub(crate) uffd: Uffd,
    file: OwnedFd,
    arena: Arc<Arena>,
    /// Most mappings of all windows together.
    budget: usize,
    pub(crate) counters: Counters,
}

#[derive(Debug, Default)]
struct Windows {
    each: Vec<Window>,
    /// The place at which the next mappings are removed: a window, and a page in it.
    hand: (usize, usize),
}

impl View {
    pub(crate) fn new(arena: &Arc<Arena>, budget: usize) -> Result<Self, KvmError> {
        let file = arena.memfd().ok_or(KvmError::NoFile)?;
        Ok(Self {
            windows: Mutex::default(),
            uffd: Uffd::new().map_err(KvmError::io("userfaultfd"))?,
            file: file.try_clone_to_owned().map_err(KvmError::io("dup"))?,
            arena: arena.clone(),
            budget,
            counters: Counters::default(),
        })
    }

    /// Creates a closed window for a memslot, and returns its first address.
    pub(crate) fn reserve(&self, id: SlotId, gfns: Span<Gfn>) -> Result<usize, KvmError> {
        let window = Window::reserve(id, gfns)?;
        let base = window.base();
        self.windows.lock().each.push(window);
        Ok(base)
    }

    /// Opens a window: its faults are served.
    pub(crate) fn open(&self, id: SlotId) -> Result<(), KvmError> {
        let mut windows = self.windows.lock();
        windows.of(id).map_or(Ok(()), |window| window.open(&self.uffd))
    }

    /// Records that the window's memslot has other frames.
    pub(crate) fn move_to(&self, id: SlotId, gfns: Span<Gfn>) {
        if let Some(window) = self.windows.lock().of(id) {
            window.gfns = gfns;
        }
    }

    /// Exempts a window from the budget.
    pub(crate) fn keep(&self, id: SlotId) {
        if let Some(window) = self.windows.lock().of(id) {
            window.kept = true;
        }
    }

    /// Closes the window of a memslot that was deleted or not created.
    pub(crate) fn close(&self, id: SlotId) {
        self.windows.lock().each.retain(|window| window.id != id);
    }

    /// Returns the first address of a memslot's window.
    pub(crate) fn base(&self, id: SlotId) -> Option<usize> {
        self.windows.lock().of(id).map(|window| window.base())
    }

    /// Returns the memslots that have windows.
    pub(crate) fn ids(&self) -> Vec<SlotId> {
        self.windows.lock().each.iter().map(|window| window.id).collect()
    }

    /// Keeps a window closed for the life of the process, since KVM still has its memslot.
    pub(crate) fn leak(&self, id: SlotId) {
        let mut windows = self.windows.lock();
        if let Some(at) = windows.each.iter().position(|window| window.id == id) {
            windows.each.swap_remove(at).leak();
        }
    }

    /// Returns the number of mappings of all windows.
    pub(crate) fn mappings(&self) -> usize {
        self.windows.lock().each.iter().map(Window::mappings).sum()
    }

    /// Returns the guest frame at an address.
    pub(crate) fn gfn_at(&self, address: usize) -> Option<Gfn> {
        self.windows.lock().at(address).map(|(window, page)| window.gfns.start + page as u64)
    }

    /// Makes KVM drop these frames. This is slat's flush: its tables have the edits already.
    pub(crate) fn flush(&self, gfns: Span<Gfn>) {
        self.counters.flushes.fetch_add(1, Relaxed);
        let windows = self.windows.lock();
        for window in &windows.each {
            let pages = window.pages_of(gfns);
            if !pages.is_empty() {
                window.forget(&pages).expect("pages of a mapping of ours can be dropped from the page table");
            }
        }
    }

    /// Maps the guest page at an address as slat's tables have it now, and wakes waiting threads. If the tables
    /// have no page, the threads fault again.
    pub(crate) fn show<F: Format, H: Host>(
        &self,
        idle: &mut Idle,
        vm: &Vm<F, H>,
        address: usize,
    ) -> Result<(), KvmError> {
        let mut windows = self.windows.lock();
        let shown = windows.at(address).and_then(|(window, page)| {
            let gfn = window.gfns.start + page as u64;
            let mapping = vm.memory().translate(idle, gfn)?;
            // A large leaf may extend beyond the memslot.
            let pages = window.pages_of(mapping.gfns);
            let first = mapping.leaf.pfn + (window.gfns.start.0 + pages.start as u64 - mapping.gfns.start.0);
            Some(self.show_pages(window, &pages, first, mapping.leaf.perms.allows(Access::Write)))
        });
        if let Some(shown) = shown {
            shown?;
            self.keep_budget(&mut windows, address)?;
        }
        self.wake(address)
    }

    /// Makes a vCPU that waits for a page which cannot be brought in get `EFAULT`, until the page is
    /// [offered](Self::offer) again.
    pub(crate) fn refuse(&self, address: usize) -> Result<(), KvmError> {
        let mut windows = self.windows.lock();
        if let Some((window, page)) = windows.at(address) {
            window.shut(&(page..page + 1))?;
        }
        self.wake(address)
    }

    /// Lets accesses to the page at an address fault again.
    pub(crate) fn offer(&self, address: usize) -> Result<(), KvmError> {
        let mut windows = self.windows.lock();
        windows.at(address).map_or(Ok(()), |(window, page)| window.blank(&self.uffd, page..page + 1))
    }

    fn wake(&self, address: usize) -> Result<(), KvmError> {
        const PAGE: usize = PAGE_SIZE as usize;
        self.uffd.wake(address & !(PAGE - 1), PAGE).map_err(KvmError::io("UFFDIO_WAKE"))
    }

    fn show_pages(
        &self,
        window: &mut Window,
        pages: &Range<usize>,
        first: Pfn,
        writable: bool,
    ) -> Result<(), KvmError> {
        let fresh = !window.shows(pages, first);
        if fresh {
            self.counters.mapped.fetch_add(1, Relaxed);
            window.map(&self.uffd, self.file.as_fd(), pages, first, writable)?;
        }
        let (start, len) = window.addresses(pages);
        let mut done = 0;
        while done < len {
            let filled = self.uffd.fill(start + done, len - done, writable);
            match filled.map_err(KvmError::io("UFFDIO_CONTINUE"))? {
                Filled::Bytes(bytes) => done += bytes,
                Filled::Exists => {
                    let set = self.uffd.set_writable(start + done, PAGE_SIZE as usize, writable);
                    set.map_err(KvmError::io("UFFDIO_WRITEPROTECT"))?;
                    done += PAGE_SIZE as usize;
                }
                // A frame that was never used: a read makes the file allocate it.
                Filled::Hole => {
                    let frame = self.arena.frame(first + (done as u64 / PAGE_SIZE));
                    // SAFETY: a frame of the arena, read like by a device; the byte is not used.
                    unsafe { frame.read_volatile() };
                }
                Filled::Again => std::thread::yield_now(),
            }
        }
        self.counters.filled.fetch_add(pages.len() as u64, Relaxed);
        if fresh && !writable {
            window.make_writable(pages)?;
        }
        Ok(())
    }

    /// Removes mappings, 2 MiB of scattered ones at a time, until the budget is kept, as a TLB may drop
    /// entries. Keeps the page at `address`, since a vCPU waits for it.
    fn keep_budget(&self, windows: &mut Windows, address: usize) -> Result<(), KvmError> {
        let mut mappings: usize = windows.each.iter().map(Window::mappings).sum();
        let mut rounds = 0;
        while mappings > self.budget && rounds <= windows.each.len() {
            let (at, page) = windows.hand;
            let Some(window) = windows.each.get_mut(at) else {
                windows.hand = (0, 0);
                rounds += 1;
                continue;
            };
            let Some(pages) = window.next_fragmented(page) else {
                windows.hand = (at + 1, 0);
                rounds += 1;
                continue;
            };
            windows.hand = (at, pages.end);
            if window.page_at(address).is_none_or(|page| !pages.contains(&page)) {
                let before = window.mappings();
                window.blank(&self.uffd, pages)?;
                mappings -= before - window.mappings();
                self.counters.evicted.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }
}

impl Windows {
    /// Returns the window and the page at an address.
    fn at(&mut self, address: usize) -> Option<(&mut Window, usize)> {
        self.each.iter_mut().find_map(|window| window.page_at(address).map(|page| (window, page)))
    }

    fn of(&mut self, id: SlotId) -> Option<&mut Window> {
        self.each.iter_mut().find(|window| window.id == id)
    }
}
