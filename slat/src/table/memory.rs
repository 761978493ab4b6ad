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
//! * *vCPUs that remember tables* (`memo.rs`) compare two words, or N, inside a section before they use one. The
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
/// A host that implements it, and returns [`Own`] from [`Host::tables`](crate::Host::tables), lends the memory of its
/// tables. Without that, tables are on the [`Heap`].
///
/// `at` must not panic, because every walk calls it. The other two may panic: see [`Host`](crate::Host#panics).
///
/// The engine may take memory back at any time before the end of the VM: in [`Vm::shrink`](crate::Vm::shrink) and
/// [`Vm::collect`](crate::Vm::collect), when a flush debt is settled, and when memslots are committed. The calling
/// thread is in no walk and holds no engine lock that a fault needs. It still holds any lock that the host held when it
/// called the engine.
///
/// ```
/// use slat::{*, table::{CHUNK_PAGES, Own, TablesOf, formats::Npt4}};
/// use std::{alloc::{Layout, alloc, dealloc}, ptr::{NonNull, with_exposed_provenance_mut}};
///
/// /// A kernel that maps physical address p at p + `OFFSET`.
/// struct DirectMap;
/// # const OFFSET: usize = 1 << 40;
/// # fn block(pages: usize) -> Layout { Layout::from_size_align(pages << 12, pages << 12).unwrap() }
///
/// // SAFETY: blocks come from an allocator; `at` leads from a frame to the address it was computed from.
/// unsafe impl TableMemory for DirectMap {
///     fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
///         assert_eq!(pages, CHUNK_PAGES);
///         let first = NonNull::new(unsafe { alloc(block(pages)) })?;
///         Some((first, Pfn((first.as_ptr().expose_provenance() - OFFSET) as u64 >> PAGE_SHIFT)))
///     }
///     unsafe fn take_back(&self, first: NonNull<u8>, _: Pfn, pages: usize) {
///         unsafe { dealloc(first.as_ptr(), block(pages)) }
///     }
///     fn at(&self, pfn: Pfn) -> NonNull<u8> {
///         NonNull::new(with_exposed_provenance_mut(pfn.address() as usize + OFFSET)).unwrap()
///     }
/// }
/// impl Host for DirectMap {
///     fn tables() -> impl TablesOf<Self> {
///         Own
///     }
///     // …
/// #   fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> { Err(HostError::Fault) }
/// }
/// let vm = Vm::<Npt4, _>::builder(DirectMap).build()?;
/// assert_eq!(vm.memory().root().address() % PAGE_SIZE, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Safety
/// `lend` must return memory of the requested size, aligned to that size, that no other code uses until `take_back`.
/// The frames of its pages follow each other from the returned one on, and `at` must return the address of each. A
/// frame must fit the address bits of the format that links it ([`Format::ADDRESS`](super::Format::ADDRESS)).
pub unsafe trait TableMemory: Send + Sync {
    /// Whether the host lends single pages at any address instead of blocks of [`CHUNK_PAGES`].
    ///
    /// ```
    /// use slat::{*, table::{Own, TablesOf, formats::Npt4}};
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
    ///     fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
    ///         assert_eq!(pages, 1, "roots of NPT have one page");
    ///         let frame = self.free.lock().unwrap().pop()?;
    ///         Some((self.at(frame), frame))
    ///     }
    ///
    ///     unsafe fn take_back(&self, _first: NonNull<u8>, frame: Pfn, _pages: usize) {
    ///         self.free.lock().unwrap().push(frame);
    ///     }
    ///
    ///     fn at(&self, frame: Pfn) -> NonNull<u8> {
    ///         NonNull::new(std::ptr::with_exposed_provenance_mut(self.seen_at[&frame])).unwrap()
    ///     }
    /// }
    /// # impl Host for Frames {
    /// #     fn tables() -> impl TablesOf<Self> { Own }
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
    ///
    /// let mut idle = Idle::take().unwrap();
    /// let vm = Vm::<Npt4, _>::builder(frames).build()?;
    /// vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(0x4000_0000))))?;
    /// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5123), access: Access::Write })?;
    /// assert!(vm.host().seen_at.contains_key(&vm.memory().root()));
    /// assert_eq!(vm.stats().lent_bytes, 9 * PAGE_SIZE); // the root, and eight for the vCPU: one for each level, and for the next faults
    /// # drop(vcpu);
    /// # vm.zap_all(&mut idle)?;
    /// # let before = vm.host().free.lock().unwrap().len();
    /// # assert!(vm.shrink(&mut idle) == 0 || vm.host().free.lock().unwrap().len() > before);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    const SINGLE_PAGES: bool = false;

    /// Lends `pages` pages with any contents, contiguous and aligned to their size, and the frame of the first one.
    /// Returns `None` if there is no memory. May sleep. `pages` is [`CHUNK_PAGES`]. For
    /// [single pages](Self::SINGLE_PAGES) it is 1, or [`Format::ROOT_PAGES`](super::Format::ROOT_PAGES) for a root.
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)>;

    /// Takes pages back, the first of which is at `first` and has frame `pfn`. May sleep.
    ///
    /// # Safety
    /// The same memory [lent](Self::lend) `first` and `pfn` for the same `pages`. They are taken back once, and no
    /// longer used.
    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize);

    /// Returns the address of table page `pfn` in this process.
    fn at(&self, pfn: Pfn) -> NonNull<u8>;
}

/// Table memory from the global allocator. The frame number of a page *is* its address: for software walkers, and for
/// machines that map memory one to one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

// SAFETY: the allocator keeps the contract; frame and address differ by a shift.
unsafe impl TableMemory for Heap {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        // SAFETY: the layout has a size that is not zero.
        let first = NonNull::new(unsafe { alloc(pages_layout(pages)) })?;
        Some((first, Pfn(first.as_ptr().expose_provenance() as u64 >> PAGE_SHIFT)))
    }

    unsafe fn take_back(&self, first: NonNull<u8>, _: Pfn, pages: usize) {
        // SAFETY: allocated above with this layout, by the caller's contract.
        unsafe { dealloc(first.as_ptr(), pages_layout(pages)) }
    }

    #[inline(always)]
    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        let page = core::ptr::with_exposed_provenance_mut(pfn.address() as usize);
        // SAFETY: the null page is never allocated, so no frame of a block is frame zero.
        unsafe { NonNull::new_unchecked(page) }
    }
}

/// Table memory that the host lends: the host is a [`TableMemory`]. [`Host::tables`](crate::Host::tables) returns this.
#[derive(Clone, Copy, Debug, Default)]
pub struct Own;

/// Where the tables of a host's VMs are: on the [`Heap`], or in the host's [`Own`] memory.
/// It is a type, not a reference, so a safe host cannot return one memory now and another one later.
///
/// # Safety
/// For one host, `memory` must always return the same memory. The host may have moved in between.
pub unsafe trait TablesOf<H: ?Sized> {
    /// The memory's type.
    type Memory: TableMemory;

    /// Returns the memory.
    fn memory(host: &H) -> &Self::Memory;
}

// SAFETY: there is one heap.
unsafe impl<H: ?Sized> TablesOf<H> for Heap {
    type Memory = Self;

    #[inline(always)]
    fn memory(_: &H) -> &Self {
        &Self
    }
}

// SAFETY: a host is the same as itself.
unsafe impl<H: TableMemory> TablesOf<H> for Own {
    type Memory = H;

    #[inline(always)]
    fn memory(host: &H) -> &H {
        host
    }
}

/// The layout of `pages` pages, aligned to their size.
pub(super) const fn pages_layout(pages: usize) -> Layout {
    let bytes = pages << PAGE_SHIFT;
    match Layout::from_size_align(bytes, bytes) {
        Ok(layout) => layout,
        Err(_) => panic!("a power of two"),
    }
}
