//! `x86_64`: its `OffsetPageTable`, one `map_to` per fault. Offset zero: physical addresses are ours.

use crate::scenarios::fault_floor::fault_race::{Peer, backing};
use crate::scenarios::threads_prelude::*;
use x86_64::structures::paging::mapper::Mapper;
use x86_64::structures::paging::{
    FrameAllocator, OffsetPageTable, Page, PageTable, PageTableFlags, PhysFrame, Size4KiB,
};
use x86_64::{PhysAddr, VirtAddr};

/// The mapper; it borrows its root from the pool until dropped.
pub struct Offset(OffsetPageTable<'static>);

/// Table memory as the crate asks for it. It clears what it gets.
struct Pool;

// SAFETY: `take` hands out each page once until it is given back.
unsafe impl FrameAllocator<Size4KiB> for Pool {
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        let address = table_pool::take().as_ptr().expose_provenance();
        Some(PhysFrame::containing_address(PhysAddr::new(address as u64)))
    }
}

fn page(gfn: Gfn) -> Page {
    Page::containing_address(VirtAddr::new(gfn.gpa().0))
}

impl Peer for Offset {
    const NAME: &'static str = "x86_64 OffsetPageTable";

    fn new() -> Self {
        let root = table_pool::take_zeroed();
        // SAFETY: a cleared page is an empty table, and ours alone until `drop` gives it back. All tables
        // below it will come from `Pool`, whose physical addresses are addresses of this process.
        Self(unsafe { OffsetPageTable::new(root.cast::<PageTable>().as_mut(), VirtAddr::zero()) })
    }

    #[inline]
    fn map(&mut self, gfn: Gfn) -> bool {
        let flags = PageTableFlags::PRESENT | PageTableFlags::WRITABLE | PageTableFlags::USER_ACCESSIBLE;
        let frame = PhysFrame::containing_address(PhysAddr::new(backing(gfn).address()));
        // SAFETY: no CPU walks this table, so no mapping in it can alias anything.
        match unsafe { self.0.map_to(page(gfn), frame, flags, &mut Pool) } {
            Ok(flush) => {
                flush.ignore();
                true
            }
            Err(_) => false,
        }
    }

    fn unmap(&mut self, gfn: Gfn) {
        // A page that is not there stays away; the checks find one that was lost.
        if let Ok((_, flush)) = self.0.unmap(page(gfn)) {
            flush.ignore();
        }
    }

    fn translate(&self, gfn: Gfn) -> Option<Pfn> {
        let frame = self.0.translate_page(page(gfn)).ok()?;
        Some(Pfn(frame.start_address().as_u64() >> 12))
    }
}

impl Drop for Offset {
    fn drop(&mut self) {
        let root = NonNull::from(self.0.level_4_table_mut()).cast();
        // SAFETY: all tables of this mapper came from the pool, and it maps nothing any more.
        unsafe { table_pool::give_back_tree(root, Level::new(4).unwrap()) };
    }
}
