//! Where table pages live, and what the engine remembers beside each.
//!
//! The host lends memory in naturally aligned **chunks** of 64 pages. The first page of a chunk holds one
//! 64-byte note for each of the others. Pointer arithmetic leads from a table page to its note:
//! no search, no second allocation, 1.6% of the tables (0.003% of what they map).
//!
//! ```text
//! chunk (256 KiB, aligned)   [ note 0 | note 1 … note 63 ] [ page 1 ] [ page 2 ] … [ page 63 ]
//!                              └ chunk's own   └────────────── belongs to ────────────┘
//! ```
//!
//! A host without blocks of 256 KiB lends [single pages](TableMemory::SINGLE_PAGES): as many as are needed, and later half as many
//! as there are, 63 at most. The engine groups them: a page of the global allocator's holds the notes of up to 63, wherever those are. A
//! radix tree leads from a page to its note (`single`).
//! Which of the two a memory is, is a constant: for chunks the fault path compiles to the arithmetic above.
//!
//! # When a chunk goes back
//! A chunk goes back to the host when all its pages are free (`pool`). No thread reaches it then:
//!
//! * *Hardware walkers.* A page of a table that was linked is free only after the shootdown of the unhooking. Each vCPU
//!   that was in the guest has dropped its paging-structure caches by then.
//! * *Walks.* A walk follows links only inside a section of the read side, and uses no table after the section. A page
//!   that was linked is free only after a grace period that began after the unhooking. So each section that found the page has
//!   ended. This covers the notes too: a walk reads the hint in a note of a table that it has reached in its section.
//! * *vCPUs that remember tables* (`fault/memo.rs`) compare two words, or N, inside a section before they use one. These are
//!   unchanged only if the table was linked when the section began, or later.
//! * *Lists and caches.* They own their pages, and a page that one of them owns is not free. The pool writes notes under
//!   its lock.
//!
//! The root's frame ([`Vm::root`](crate::Vm::root)) is a number. A host that walks tables itself does so from a vCPU in the
//! guest, or stops before it answers flushes.

pub(crate) use super::list::NodeList;

use super::entry::{Entry, Word};
use super::single;
use crate::addr::{INDEX_BITS, Level, PAGE_SHIFT, PAGE_SIZE, Pfn};
use crate::slots::Hint;
use crate::sync::prim::read_whole;
use alloc::alloc::{Layout, alloc, dealloc};
use core::cell::Cell;
use core::ptr::NonNull;

/// Pages in a chunk. Under shuttle each table page has a chunk of its own, which goes back where the page is free.
pub const CHUNK_PAGES: usize = if cfg!(shuttle) { 2 } else { 64 };
/// Bytes in a chunk, and its alignment.
pub const CHUNK_BYTES: usize = CHUNK_PAGES << PAGE_SHIFT;
/// Entries in a table page.
pub(crate) const ENTRIES: usize = 1 << INDEX_BITS;

/// The memory that tables are made of, and its two names: a pointer for the engine, a frame for the hardware.
///
/// Every method has a default: chunks from the global allocator, with a frame number that *is* the address.
/// That is right wherever the walker of the tables is software in this process. A hypervisor overrides `pfn`, `at`, and the
/// two functions that lend: `alloc_chunk` and `free_chunk`, or `alloc_pages` and `free_pages`.
///
/// A chunk or page may go back at any time between its allocation and the end of the VM: in [`Vm::shrink`](crate::Vm::shrink)
/// and [`Vm::collect`](crate::Vm::collect), where a flush debt is settled, and where memslots are committed. The calling thread
/// is in no walk and holds no lock of the engine that another thread needs for a fault; it holds what the host's own code held when
/// it called the engine.
///
/// ```
/// # use slat::{*, table::{TableMemory, formats::Npt4, memory::CHUNK_BYTES}};
/// use std::{alloc::{Layout, alloc, dealloc}, ptr::{NonNull, with_exposed_provenance_mut}};
///
/// /// A kernel that sees physical address p at p + `OFFSET`.
/// struct DirectMap;
/// # const OFFSET: usize = 1 << 40;
/// # fn chunk() -> Layout { Layout::from_size_align(CHUNK_BYTES, CHUNK_BYTES).unwrap() }
///
/// // SAFETY: chunks come from an allocator; `pfn` and `at` are each other's inverse.
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
/// assert_eq!(vm.root().address() % PAGE_SIZE, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Safety
/// `alloc_chunk` must return memory of [`CHUNK_BYTES`], aligned to as much, that no other code uses until
/// `free_chunk`; likewise `alloc_pages`, of as many pages as it was asked for. `at` and `pfn` must be each other's inverse for
/// every page of such memory, and stay so. The frame must fit the address bits of the format that links it
/// ([`Format::ADDRESS`](super::Format::ADDRESS)).
pub unsafe trait TableMemory: Send + Sync {
    /// Whether the host lends pages one at a time, wherever they are, instead of chunks. Then the engine calls
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
    /// vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(0x4000_0000))))?;
    /// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5123), access: Access::Write })?;
    /// assert_eq!(vm.stats().lent_bytes, 9 * PAGE_SIZE); // the root, and eight for the vCPU: for a table of each level, and the next faults
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    const SINGLE_PAGES: bool = false;

    /// A chunk with any contents, or `None` where there is no more. May sleep.
    fn alloc_chunk(&self) -> Option<NonNull<u8>> {
        // SAFETY: the layout has a size that is not zero.
        NonNull::new(unsafe { alloc(chunk_layout()) })
    }

    /// Takes a chunk back. May sleep.
    ///
    /// # Safety
    /// `chunk` came from [`alloc_chunk`](Self::alloc_chunk) of the same memory, once, and nothing uses it any more.
    unsafe fn free_chunk(&self, chunk: NonNull<u8>) {
        // SAFETY: allocated above with this layout, says the caller.
        unsafe { dealloc(chunk.as_ptr(), chunk_layout()) }
    }

    /// As many pages with any contents, contiguous and aligned to their size; or `None` where there are no more. May sleep.
    /// `pages` is 1, or [`Format::ROOT_PAGES`](super::Format::ROOT_PAGES) for a root. Called only for
    /// [single pages](Self::SINGLE_PAGES).
    fn alloc_pages(&self, pages: usize) -> Option<NonNull<u8>> {
        // SAFETY: the layout has a size that is not zero.
        NonNull::new(unsafe { alloc(pages_layout(pages)) })
    }

    /// Takes pages back. May sleep.
    ///
    /// # Safety
    /// `first` came from [`alloc_pages`](Self::alloc_pages) of the same memory, for as many pages, once, and nothing uses them
    /// any more.
    unsafe fn free_pages(&self, first: NonNull<u8>, pages: usize) {
        // SAFETY: allocated above with this layout, says the caller.
        unsafe { dealloc(first.as_ptr(), pages_layout(pages)) }
    }

    /// The same as [`alloc_pages`](Self::alloc_pages), and the frame of the first page: what the engine calls. The default asks
    /// [`pfn`](Self::pfn) for it. A host that has frames, and knows where it sees each, but not which frame is at an address,
    /// overrides this, [`free_frames`](Self::free_frames) and [`at`](Self::at). Its `pfn` is not called.
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
    /// # vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(0x4000_0000))))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// vcpu.fault(&mut idle, Fault { gpa: Gpa(0x5123), access: Access::Write })?;
    /// assert!(vm.host().seen_at.contains_key(&vm.root()));
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

    /// Takes pages back, the first of which has this frame. May sleep.
    ///
    /// # Safety
    /// As [`free_pages`](Self::free_pages), of [`alloc_frames`](Self::alloc_frames).
    unsafe fn free_frames(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        let _ = pfn;
        // SAFETY: the caller's word.
        unsafe { self.free_pages(first, pages) }
    }

    /// The frame number under which the hardware knows the page at `page`.
    #[inline(always)]
    fn pfn(&self, page: NonNull<u8>) -> Pfn {
        Pfn(page.as_ptr().expose_provenance() as u64 >> PAGE_SHIFT)
    }

    /// Where this process sees the table page `pfn`.
    #[inline(always)]
    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        let page = core::ptr::with_exposed_provenance_mut(pfn.address() as usize);
        // SAFETY: a frame of a chunk is never frame zero: the null page is not allocated.
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

/// As many pages, aligned to their size.
pub(super) const fn pages_layout(pages: usize) -> Layout {
    let bytes = pages << PAGE_SHIFT;
    match Layout::from_size_align(bytes, bytes) {
        Ok(layout) => layout,
        Err(_) => panic!("a power of two"),
    }
}

/// What the engine remembers beside a table page.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Note {
    /// The page.
    pub(crate) page: Node,
    /// The next page in the list that owns this one, while it is in no table.
    pub(crate) next: Cell<Option<Node>>,
    /// The level of a dead table, while it waits to be taken apart.
    pub(crate) level: Cell<Level>,
    /// The lowest bytes of its frame, where it is a single page.
    pfn: [u8; 7],
    /// The slot that the frames of a leaf table belong to.
    pub(crate) hint: Hint,
}

impl Note {
    /// The frame of a single page.
    pub(super) fn pfn(&self) -> Pfn {
        let [a, b, c, d, e, f, g] = self.pfn;
        Pfn(u64::from_le_bytes([a, b, c, d, e, f, g, 0]))
    }

    pub(super) fn new(page: Node, pfn: Pfn) -> Self {
        let [pfn @ .., _] = pfn.0.to_le_bytes();
        Self { page, next: Cell::new(None), level: Cell::new(Level::K4), pfn, hint: Hint::default() }
    }
}

/// The 512 entries of a table.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(crate) struct TablePage(pub(crate) [Entry; ENTRIES]);

/// A table page in the engine's hands: a pointer that is one word and `Copy`.
///
/// A `Node` does not say that its page is still in a table. Who may follow one is decided by who holds it:
/// a walk, for its section (the grace period keeps the page); a list of [`super::retire`]; or the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Node(NonNull<TablePage>);

// SAFETY: a node is a pointer to atomics; who may use it is decided as its documentation says.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

const _: () = {
    assert!(size_of::<TablePage>() == PAGE_SIZE as usize);
    assert!(size_of::<Note>() == 64 && CHUNK_PAGES * size_of::<Note>() <= PAGE_SIZE as usize);
    assert!(size_of::<Option<Node>>() == 8);
};

impl Node {
    /// The page that a link leads to.
    ///
    /// # Safety
    /// `pfn` was read from a link of a table made of `memory`, and is followed in the section that read it.
    #[inline(always)]
    pub(crate) unsafe fn follow<M: TableMemory>(memory: &M, pfn: Pfn) -> Self {
        Self(memory.at(pfn).cast())
    }

    /// The page at `page`.
    pub(crate) const fn new(page: NonNull<u8>) -> Self {
        Self(page.cast())
    }

    /// Where it is.
    pub(crate) fn page(self) -> NonNull<u8> {
        self.0.cast()
    }

    /// The page `pages` after it: of a root that has more than one.
    #[inline(always)]
    pub(crate) fn beside(self, pages: usize) -> Self {
        Self(NonNull::new(self.0.as_ptr().wrapping_add(pages)).unwrap_or(self.0))
    }

    /// No page: not to be followed.
    pub(crate) const fn dangling() -> Self {
        Self(NonNull::dangling())
    }

    /// The frame that the hardware knows it by.
    pub(crate) fn pfn<M: TableMemory>(self, memory: &M) -> Pfn {
        let note = if M::SINGLE_PAGES { single::find(self.0.cast()) } else { None };
        // SAFETY: a page that is registered has a note; the caller has the page.
        note.map_or_else(|| memory.pfn(self.0.cast()), |note| unsafe { note.cast::<Note>().as_ref() }.pfn())
    }

    /// Its entries.
    ///
    /// # Safety
    /// The page stays allocated for `'a`: the holder is in a section, or owns the page.
    #[inline(always)]
    pub(crate) unsafe fn entries<'a>(self) -> &'a [Entry; ENTRIES] {
        // SAFETY: table pages are always valid as 512 atomics; allocated, says the caller.
        unsafe { &(*self.0.as_ptr()).0 }
    }

    /// Its entries as plain words.
    ///
    /// # Safety
    /// During `'a` the page is the caller's alone.
    pub(crate) unsafe fn words<'a>(self) -> &'a [u64; ENTRIES] {
        // SAFETY: an entry is one word; no other thread reads or writes it, says the caller.
        let words = unsafe { &*self.0.as_ptr().cast() };
        read_whole(words);
        words
    }

    /// Its note, where the page is of `M`.
    ///
    /// # Safety
    /// As [`entries`](Self::entries).
    #[inline(always)]
    pub(crate) unsafe fn note_in<'a, M: TableMemory>(self) -> &'a Note {
        // SAFETY: the caller's word; pages of chunks are registered nowhere.
        unsafe { if M::SINGLE_PAGES { self.note() } else { self.note_in_chunk() } }
    }

    /// Its note, whatever memory it is of: in a process without single pages, one load and one comparison more.
    ///
    /// # Safety
    /// As [`entries`](Self::entries).
    #[inline]
    pub(crate) unsafe fn note<'a>(self) -> &'a Note {
        // SAFETY: the caller's word.
        unsafe {
            single::find(self.0.cast()).map_or_else(|| self.note_in_chunk(), |note| note.cast().as_ref())
        }
    }

    /// # Safety
    /// As [`entries`](Self::entries); the page is of a chunk.
    #[inline(always)]
    unsafe fn note_in_chunk<'a>(self) -> &'a Note {
        let page = self.0.cast::<u8>();
        let offset = page.as_ptr().addr() & (CHUNK_BYTES - 1);
        // SAFETY: both lie in one chunk, whose first page holds initialised notes.
        unsafe { page.sub(offset).cast::<Note>().add(offset >> PAGE_SHIFT).as_ref() }
    }

    /// Fills a page that no other thread can reach with one word.
    pub(crate) fn fill(self, word: Word) {
        // SAFETY: the caller owns the page (it is in no table yet).
        let entries = unsafe { self.entries() };
        for entry in entries {
            entry.fill(word);
        }
    }

    /// Fills a page that is in no table any more with [`inject::GIVEN_BACK`](crate::inject::GIVEN_BACK): an explorer sees
    /// who still looks at it.
    #[cfg(all(seeded, virtual_time))]
    pub(crate) fn give_back(self) {
        // SAFETY: the caller owns the page.
        let entries = unsafe { self.entries() };
        entries.iter().for_each(Entry::give_back);
    }
}
