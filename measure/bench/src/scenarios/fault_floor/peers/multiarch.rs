//! `page_table_multiarch`: its x86-64 table, through a cursor that lives for one fault.

use crate::scenarios::fault_floor::fault_race::{Peer, backing};
use crate::scenarios::threads_prelude::*;
use memory_addr::{PhysAddr, VirtAddr};
use page_table_multiarch::x86_64::X64PageTable;
use page_table_multiarch::{MappingFlags, PageSize, PagingHandler};

/// The table; dropping it gives its memory back.
pub struct Multiarch(X64PageTable<Pool>);

/// Table memory as the crate asks for it. It clears what it gets.
struct Pool;

impl PagingHandler for Pool {
    fn alloc_frames(frames: usize, _align: usize) -> Option<PhysAddr> {
        // The crate asks for single frames only, and each is aligned to its size.
        (frames == 1).then(|| PhysAddr::from_usize(table_pool::take().as_ptr().expose_provenance()))
    }

    fn dealloc_frames(frame: PhysAddr, _frames: usize) {
        if let Some(table) = NonNull::new(ptr::with_exposed_provenance_mut(frame.as_usize())) {
            // SAFETY: the crate frees a frame that it got from `alloc_frames`, once, after its last use.
            unsafe { table_pool::give_back(table) };
        }
    }

    #[inline]
    fn phys_to_virt(frame: PhysAddr) -> VirtAddr {
        VirtAddr::from_usize(frame.as_usize())
    }
}

fn address(gfn: Gfn) -> VirtAddr {
    VirtAddr::from_usize(gfn.gpa().0 as usize)
}

impl Peer for Multiarch {
    const NAME: &'static str = "page_table_multiarch";

    fn new() -> Self {
        Self(X64PageTable::try_new().expect("the pool grows on demand"))
    }

    #[inline]
    fn map(&mut self, gfn: Gfn) -> bool {
        let flags = MappingFlags::READ | MappingFlags::WRITE | MappingFlags::EXECUTE | MappingFlags::USER;
        let frame = PhysAddr::from_usize(backing(gfn).address() as usize);
        self.0.cursor().map(address(gfn), frame, PageSize::Size4K, flags).is_ok()
    }

    fn unmap(&mut self, gfn: Gfn) {
        // A page that is not there stays away; the checks find one that was lost.
        let _ = self.0.cursor().unmap(address(gfn));
    }

    fn translate(&self, gfn: Gfn) -> Option<Pfn> {
        let (frame, ..) = self.0.query(address(gfn)).ok()?;
        Some(Pfn(frame.as_usize() as u64 >> 12))
    }
}
