//! The memory of table pages, and the note that the engine keeps for each page.
//!
//! The host lends memory in naturally aligned **chunks** of 64 pages. The first page of a chunk holds one 64-byte note
//! for each of the others. Pointer arithmetic leads from a table page to its note: no search, no second allocation,
//! 1.6% of the tables (0.003% of the memory that they map).
//!
//! ```text
//! chunk (256 KiB, aligned)   [ note 0 | note 1 … note 63 ] [ page 1 ] [ page 2 ] … [ page 63 ]
//!                              └ chunk's own   └────────────── belongs to ────────────┘
//! ```
//!
//! A host without blocks of 256 KiB lends [single pages](TableMemory::SINGLE_PAGES). The engine asks for as many as it
//! needs, and later for half as many as it has, 63 at most. It groups them: a page of the global allocator holds the
//! notes of up to 63 pages, wherever those are. A radix tree leads from a page to its note (`page_notes`). Which kind a
//! memory is, is a constant, so for chunks the fault path compiles to the arithmetic above.
//!
//! # When a chunk returns to the host
//! A chunk returns when all its pages are free (`pool`). No thread reaches it then:
//!
//! * *Hardware walkers.* The page of a linked table becomes free only after the shootdown of its unhooking. By then
//!   each vCPU that was in the guest has dropped its paging-structure caches.
//! * *Walks.* A walk follows links only inside a section of the read side, and uses no table after the section. A
//!   linked page becomes free only after a grace period that began after the unhooking, so each section that found the
//!   page has ended. This covers notes, too: a walk reads the hint in the note of a table that it has reached in its
//!   section.
//! * *vCPUs that remember tables* (`fault/memo.rs`) compare two words, or N, inside a section before they use one. The
//!   words are unchanged only if the table was linked when the section began, or later.
//! * *Lists and caches.* They own their pages, and an owned page is not free. The pool writes notes under its lock.
//!
//! The root's frame ([`GuestSpace::root`](crate::GuestSpace::root)) is a number. A host that walks tables itself does so from a vCPU in
//! the guest, or stops before it answers flushes.

pub(crate) use super::node::{Node, Note};
pub(crate) use super::node_list::NodeList;

use crate::addr::{INDEX_BITS, PAGE_SHIFT, Pfn};
use alloc::alloc::{Layout, alloc, dealloc};
use core::ptr::NonNull;

/// Number of pages in a chunk. Under shuttle each table page has its own chunk, which returns when the page is free.
pub const CHUNK_PAGES: usize = if cfg!(shuttle) { 2 } else { 64 };
/// Size of a chunk in bytes, and its alignment.
pub const CHUNK_BYTES: usize = CHUNK_PAGES << PAGE_SHIFT;
/// Number of entries in a table page.
pub(crate) const ENTRIES: usize = 1 << INDEX_BITS;

/// The memory of tables, with its two names: a pointer for the engine, a frame for the hardware.
///
/// `pfn` and `at` must not panic, because every walk calls them. The functions that lend and take back may panic: see
/// [`Host`](crate::Host#panics).
///
/// Every method has a default: chunks from the global allocator, whose frame number *is* the address. The defaults suit
/// a software walker in this process. A hypervisor overrides `pfn`, `at`, and the two functions that lend:
/// `alloc_chunk` and `free_chunk`, or `alloc_pages` and `free_pages`.
///
/// The engine may return a chunk or page at any time before the end of the VM: in [`Vm::shrink`](crate::Vm::shrink) and
/// [`Vm::collect`](crate::Vm::collect), when a flush debt is settled, and when memslots are committed. The calling
/// thread is in no walk and holds no engine lock that a fault needs. It still holds any lock that the host held when it
/// called the engine.
///
/// ```
/// # use slat::{*, table::{TableMemory, formats::Npt4, memory::CHUNK_BYTES}};
/// use std::{alloc::{Layout, alloc, dealloc}, ptr::{NonNull, with_exposed_provenance_mut}};
///
/// /// A kernel that maps physical address p at p + `OFFSET`.
/// struct DirectMap;
/// # const OFFSET: usize = 1 << 40;
/// # fn chunk() -> Layout { Layout::from_size_align(CHUNK_BYTES, CHUNK_BYTES).unwrap() }
///
/// // SAFETY: chunks come from an allocator; `pfn` and `at` are inverse to each other.
/// unsafe impl TableMemory for DirectMap {
///     fn alloc_chunk(&self) -> Option<NonNull<u8>> {
///         NonNull::new(unsafe { alloc(chunk()) })
///     }
///     unsafe fn free_chunk(&self, first: NonNull<u8>) {
///         unsafe { dealloc(first.as_ptr(), chunk()) }
///     }
///     fn pfn(&self, page: NonNull<u8>) -> Pfn {
///         Pfn((page.as_ptr().expose_provenance() - OFFSET) as u64 >> PAGE_SHIFT)
///     }
///     fn at(&self, pfn: Pfn) -> NonNull<u8> {
///         NonNull::new(with_exposed_provenance_mut(pfn.address() as usize + OFFSET)).unwrap()
///     }
/// }
/// # impl Host for DirectMap {
/// #     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
/// # }
/// let vm = Vm::<Npt4, _>::builder(DirectMap).build()?;
/// assert_eq!(vm.memory().root().address() % PAGE_SIZE, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Safety
/// `alloc_chunk` must return memory of [`CHUNK_BYTES`], aligned to its size, that no other code uses until
/// `free_chunk`. `alloc_pages` must do the same for the requested number of pages. `at` and `pfn` must stay inverse to
/// each other for every page of such memory. The frame must fit the address bits of the format that links it
/// ([`Format::ADDRESS`](super::Format::ADDRESS)).
pub unsafe trait TableMemory: Send + Sync {
    /// Whether the host lends single pages at any address instead of chunks. The engine then calls
    /// [`alloc_pages`](Self::alloc_pages) and [`free_pages`](Self::free_pages), and neither function for chunks.
    ///
    /// ```
    /// use slat::{table::formats::Npt4, *};
    /// use std::{ptr::NonNull, sync::Mutex};
    ///
    /// /// A kernel's list of free 4 KiB frames, all of which it has mapped at their own addresses.
    /// struct Frames(Mutex<Vec<usize>>);
    ///
    /// unsafe impl TableMemory for Frames {
    ///     const SINGLE_PAGES: bool = true;
    ///
    ///     fn alloc_pages(&self, pages: usize) -> Option<NonNull<u8>> {
    ///         assert_eq!(pages, 1, "roots of NPT have one page");
    ///         let frame = self.0.lock().unwrap().pop()?;
    ///         NonNull::new(std::ptr::with_exposed_provenance_mut(frame))
    ///     }
    ///
    ///     unsafe fn free_pages(&self, first: NonNull<u8>, _pages: usize) {
    ///         self.0.lock().unwrap().push(first.as_ptr().expose_provenance());
    ///     }
    /// }
    /// # impl Host for Frames {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    /// #     }
    /// # }
    /// # #[repr(align(4096))]
    /// # #[derive(Clone)]
    /// # struct Frame([u8; 4096]);
    /// # let mut ram = vec![Frame([0; 4096]); 100];
    /// # let free = || ram.iter_mut().map(|frame| (frame as *mut Frame).expose_provenance()).collect();
    /// # let frames = Frames(Mutex::new({ let mut free = free; free() }));
    ///
    /// let mut idle = Idle::take().unwrap();
    /// let vm = Vm::<Npt4, _>::builder(frames).build()?;
    /// vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(0x4000_0000))))?;
    /// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5123), access: Access::Write })?;
    /// assert_eq!(vm.stats().lent_bytes, 9 * PAGE_SIZE); // the root, and eight for the vCPU: one for each level, and for the next faults
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    const SINGLE_PAGES: bool = false;

    /// Allocates a chunk with any contents, or returns `None` if there is no memory. May sleep.
    fn alloc_chunk(&self) -> Option<NonNull<u8>> {
        // SAFETY: the layout has a size that is not zero.
        NonNull::new(unsafe { alloc(chunk_layout()) })
    }

    /// Frees a chunk. May sleep.
    ///
    /// # Safety
    /// `chunk` came from [`alloc_chunk`](Self::alloc_chunk) of the same memory, is freed once, and is no longer used.
    unsafe fn free_chunk(&self, chunk: NonNull<u8>) {
        // SAFETY: allocated above with this layout, by the caller's contract.
        unsafe { dealloc(chunk.as_ptr(), chunk_layout()) }
    }

    /// Allocates `pages` pages with any contents, contiguous and aligned to their size, or returns `None` if there is
    /// no memory. May sleep. `pages` is 1, or [`Format::ROOT_PAGES`](super::Format::ROOT_PAGES) for a root. Called only
    /// for [single pages](Self::SINGLE_PAGES).
    fn alloc_pages(&self, pages: usize) -> Option<NonNull<u8>> {
        // SAFETY: the layout has a size that is not zero.
        NonNull::new(unsafe { alloc(pages_layout(pages)) })
    }

    /// Frees `pages` pages. May sleep.
    ///
    /// # Safety
    /// `first` came from [`alloc_pages`](Self::alloc_pages) of the same memory with the same `pages`, is freed once,
    /// and is no longer used.
    unsafe fn free_pages(&self, first: NonNull<u8>, pages: usize) {
        // SAFETY: allocated above with this layout, by the caller's contract.
        unsafe { dealloc(first.as_ptr(), pages_layout(pages)) }
    }

    /// Allocates like [`alloc_pages`](Self::alloc_pages), and also returns the frame of the first page. The engine
    /// calls this function; the default calls [`pfn`](Self::pfn) for the frame. A host that cannot find the frame of an
    /// address overrides this function, [`free_frames`](Self::free_frames) and [`at`](Self::at). The engine then does
    /// not call its `pfn`.
    ///
    /// ```
    /// use slat::{table::formats::Npt4, *};
    /// use std::{collections::BTreeMap, ptr::NonNull, sync::Mutex};
    ///
    /// /// A hypervisor's frame allocator, and its `phys_to_virt`.
    /// struct Frames {
    ///     free: Mutex<Vec<Pfn>>,
    ///     seen_at: BTreeMap<Pfn, usize>,
    /// }
    ///
    /// unsafe impl TableMemory for Frames {
    ///     const SINGLE_PAGES: bool = true;
    ///
    ///     fn alloc_frames(&self, frames: usize) -> Option<(NonNull<u8>, Pfn)> {
    ///         assert_eq!(frames, 1, "roots of NPT have one page");
    ///         let frame = self.free.lock().unwrap().pop()?;
    ///         Some((self.at(frame), frame))
    ///     }
    ///
    ///     unsafe fn free_frames(&self, _first: NonNull<u8>, frame: Pfn, _frames: usize) {
    ///         self.free.lock().unwrap().push(frame);
    ///     }
    ///
    ///     fn at(&self, frame: Pfn) -> NonNull<u8> {
    ///         NonNull::new(std::ptr::with_exposed_provenance_mut(self.seen_at[&frame])).unwrap()
    ///     }
    /// #   fn pfn(&self, _: NonNull<u8>) -> Pfn { unreachable!() }
    /// }
    /// # impl Host for Frames {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    /// #     }
    /// # }
    /// # #[repr(align(4096))]
    /// # #[derive(Clone)]
    /// # struct Frame([u8; 4096]);
    /// # let mut ram = vec![Frame([0; 4096]); 100];
    /// # let ram = ram.iter_mut().map(|frame| (frame as *mut Frame).expose_provenance());
    /// # let seen_at: BTreeMap<_, _> = (0..).map(|nth| Pfn(0x7000 + 7 * nth)).zip(ram).collect();
    /// # let frames = Frames { free: Mutex::new(seen_at.keys().copied().collect()), seen_at };
    /// # let mut idle = Idle::take().unwrap();
    ///
    /// let vm = Vm::<Npt4, _>::builder(frames).build()?;
    /// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(0x4000_0000))))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5123), access: Access::Write })?;
    /// assert!(vm.host().seen_at.contains_key(&vm.memory().root()));
    /// # drop(vcpu);
    /// # vm.zap_all(&mut idle)?;
    /// # let before = vm.host().free.lock().unwrap().len();
    /// # assert!(vm.shrink(&mut idle) == 0 || vm.host().free.lock().unwrap().len() > before);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn alloc_frames(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        let first = self.alloc_pages(pages)?;
        Some((first, self.pfn(first)))
    }

    /// Frees pages, the first of which has frame `pfn`. May sleep.
    ///
    /// # Safety
    /// As for [`free_pages`](Self::free_pages), with pages from [`alloc_frames`](Self::alloc_frames).
    unsafe fn free_frames(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        let _ = pfn;
        // SAFETY: the caller guarantees it.
        unsafe { self.free_pages(first, pages) }
    }

    /// Returns the frame number by which the hardware addresses the page at `page`.
    #[inline(always)]
    fn pfn(&self, page: NonNull<u8>) -> Pfn {
        Pfn(page.as_ptr().expose_provenance() as u64 >> PAGE_SHIFT)
    }

    /// Returns the address of table page `pfn` in this process.
    #[inline(always)]
    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        let page = core::ptr::with_exposed_provenance_mut(pfn.address() as usize);
        // SAFETY: the null page is never allocated, so no frame of a chunk is frame zero.
        unsafe { NonNull::new_unchecked(page) }
    }
}

/// Table memory from the global allocator, identity mapped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

// SAFETY: the trait's defaults keep its contract.
unsafe impl TableMemory for Heap {}

const fn chunk_layout() -> Layout {
    pages_layout(CHUNK_PAGES)
}

/// The layout of `pages` pages, aligned to their size.
pub(super) const fn pages_layout(pages: usize) -> Layout {
    let bytes = pages << PAGE_SHIFT;
    match Layout::from_size_align(bytes, bytes) {
        Ok(layout) => layout,
        Err(_) => panic!("a power of two"),
    }
}
