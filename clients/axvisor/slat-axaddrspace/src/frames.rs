//! The host: takes frames from `PagingHandler`, for tables and for areas that are allocated page by page.

use alloc::collections::BTreeMap;
use core::marker::PhantomData;
use core::ptr::NonNull;
use memory_addr::PhysAddr;
use page_table_multiarch::PagingHandler;
use slat::table::{Own, TablesOf};
use slat::{
    Access, Gfn, Gpa, Host, HostError, HostPage, Hva, Idle, Level, PAGE_SHIFT, PAGE_SIZE, Pfn, Span,
    TableMemory,
};
use spin::Mutex;

/// Marks a host address that is not a physical address but a guest-physical one; its frame is allocated at the first
/// fault.
const ALLOCATED: u64 = 1 << 60;

/// Bits of a physical address.
const PHYSICAL_BITS: u32 = 48;

/// The host address of this many bytes of physical memory; `None` where the addresses are too large.
pub fn linear(first: PhysAddr, bytes: usize) -> Option<Hva> {
    let end = first.as_usize().checked_add(bytes)?;
    (end <= 1 << PHYSICAL_BITS).then_some(Hva(first.as_usize() as u64))
}

/// The host address of memory at `gpa` that is allocated page by page.
pub fn allocated(gpa: Gpa) -> Hva {
    Hva(gpa.0 | ALLOCATED)
}

/// The hypervisor's address of a frame.
pub fn seen_at<H: PagingHandler>(pfn: Pfn) -> *mut u8 {
    H::phys_to_virt(PhysAddr::from(pfn.address() as usize)).as_mut_ptr()
}

/// The memory behind a VM's memslots, and for its tables.
pub struct Frames<H: PagingHandler> {
    /// Frames of areas that are allocated, by host address.
    allocated: Mutex<BTreeMap<u64, Pfn>>,
    _handler: PhantomData<fn() -> H>,
}

impl<H: PagingHandler> Frames<H> {
    pub fn new() -> Self {
        Self { allocated: Mutex::default(), _handler: PhantomData }
    }

    /// Frees the frames that were allocated there. The guest has no translation of them any more.
    pub fn free(&self, hvas: Span<Hva>) {
        let mut allocated = self.allocated.lock();
        let mut gone = allocated.split_off(&hvas.start.0);
        allocated.append(&mut gone.split_off(&hvas.end.0));
        gone.into_values().for_each(dealloc::<H>);
    }
}

fn dealloc<H: PagingHandler>(pfn: Pfn) {
    H::dealloc_frame(PhysAddr::from(pfn.address() as usize));
}

impl<H: PagingHandler> Drop for Frames<H> {
    fn drop(&mut self) {
        // Frames that could not be unmapped for lack of memory. The tables are gone, too.
        core::mem::take(self.allocated.get_mut()).into_values().for_each(dealloc::<H>);
    }
}

// SAFETY: frames of the hypervisor's, which are the engine's until they are given back. It sees each of them at one place.
unsafe impl<H: PagingHandler> TableMemory for Frames<H> {
    const SINGLE_PAGES: bool = true;

    fn lend(&self, frames: usize) -> Option<(NonNull<u8>, Pfn)> {
        let first = H::alloc_frames(frames, frames << PAGE_SHIFT)?;
        let pfn = Pfn(first.as_usize() as u64 >> PAGE_SHIFT);
        Some((self.at(pfn), pfn))
    }

    unsafe fn take_back(&self, _: NonNull<u8>, pfn: Pfn, frames: usize) {
        H::dealloc_frames(PhysAddr::from(pfn.address() as usize), frames);
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        NonNull::new(seen_at::<H>(pfn)).expect("no frame is seen at address zero")
    }
}

impl<H: PagingHandler> Host for Frames<H> {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        // The engine takes the largest page that memslot and format allow.
        let frame = HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), level: Level::G1, ..HostPage::PLAIN };
        (hva.0 & ALLOCATED == 0).then_some(frame)
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        if let Some(page) = self.lookup(hva, access) {
            return Ok(page);
        }
        let mut allocated = self.allocated.lock();
        let pfn = match allocated.get(&hva.0) {
            Some(&pfn) => pfn,
            None => {
                let frame = H::alloc_frame().ok_or(HostError::NoMemory)?;
                let pfn = Pfn(frame.as_usize() as u64 >> PAGE_SHIFT);
                // SAFETY: a frame that is this area's alone.
                unsafe { seen_at::<H>(pfn).write_bytes(0, PAGE_SIZE as usize) };
                allocated.insert(hva.0, pfn);
                pfn
            }
        };
        Ok(HostPage { pfn, ..HostPage::PLAIN })
    }

    fn broadcast_flush(&self, gfns: Span<Gfn>) -> bool {
        // The mistake says that it is done, and does nothing.
        crate::mistake("no-flush") || broadcast(gfns)
    }
}

/// The largest number of frames to flush one by one.
#[cfg(target_os = "none")]
const BY_PAGE: u64 = 64;

/// Flushes these frames on every processor. All of AxVisor's guests have VMID 0, which is always the current one.
#[cfg(target_os = "none")]
fn broadcast(gfns: Span<Gfn>) -> bool {
    use core::arch::asm;
    // SAFETY: at EL2; TLB maintenance changes no memory.
    unsafe {
        // The edits, before the flush.
        asm!("dsb ishst", options(nostack, preserves_flags));
        if gfns.len() <= BY_PAGE {
            for gfn in gfns.start.0..gfns.end.0 {
                asm!("tlbi ipas2e1is, {}", in(reg) gfn, options(nostack, preserves_flags));
            }
            // Cached translations that combine both stages are not tagged by guest-physical address.
            asm!("dsb ish", "tlbi vmalle1is", options(nostack, preserves_flags));
        } else {
            asm!("tlbi vmalls12e1is", options(nostack, preserves_flags));
        }
        asm!("dsb ish", "isb", options(nostack, preserves_flags));
    }
    true
}

/// On a host no guest runs.
#[cfg(not(target_os = "none"))]
fn broadcast(_: Span<Gfn>) -> bool {
    false
}
