//! `aarch64-paging`: a stage 2 table rooted at level 0, one single-page `map_range` per fault.

use crate::scenarios::fault_floor::fault_race::{Peer, backing};
use crate::scenarios::threads_prelude::*;
use aarch64_paging::descriptor::{PhysicalAddress, Stage2Attributes};
use aarch64_paging::paging::{
    Constraints, MemoryRegion, PageTable, RootTable, Stage2 as Regime, Translation,
};

/// The table; dropping it gives its memory back.
pub struct Stage2(RootTable<Regime, Pool>);

/// Table memory as the crate asks for it: cleared.
struct Pool;

impl Translation<Stage2Attributes> for Pool {
    fn allocate_table(&mut self) -> (NonNull<PageTable<Stage2Attributes>>, PhysicalAddress) {
        let table = table_pool::take_zeroed();
        (table.cast(), PhysicalAddress(table.as_ptr().expose_provenance()))
    }

    unsafe fn deallocate_table(&mut self, table: NonNull<PageTable<Stage2Attributes>>) {
        // SAFETY: the caller frees a table of this pool that is no longer used.
        unsafe { table_pool::give_back(table.cast()) };
    }

    #[inline]
    fn physical_to_virtual(&self, address: PhysicalAddress) -> NonNull<PageTable<Stage2Attributes>> {
        NonNull::new(ptr::with_exposed_provenance_mut(address.0)).expect("no table lies at address zero")
    }
}

fn page(gfn: Gfn) -> MemoryRegion {
    let start = gfn.gpa().0 as usize;
    MemoryRegion::new(start, start + PAGE_SIZE as usize)
}

impl Peer for Stage2 {
    const NAME: &'static str = "aarch64-paging stage 2";

    fn new() -> Self {
        Self(RootTable::new(Pool, 0, Regime))
    }

    #[inline]
    fn map(&mut self, gfn: Gfn) -> bool {
        let flags = Stage2Attributes::VALID
            | Stage2Attributes::ACCESS_FLAG
            | Stage2Attributes::MEMATTR_NORMAL_OUTER_WB
            | Stage2Attributes::MEMATTR_NORMAL_INNER_WB
            | Stage2Attributes::S2AP_ACCESS_RW
            | Stage2Attributes::SH_INNER;
        let frame = PhysicalAddress(backing(gfn).address() as usize);
        self.0.map_range(&page(gfn), frame, flags, Constraints::empty()).is_ok()
    }

    fn unmap(&mut self, gfn: Gfn) {
        // One page at a time: unmapping a whole 2 MiB would free the table under it.
        let hole = Stage2Attributes::empty();
        let _ = self.0.map_range(&page(gfn), PhysicalAddress(0), hole, Constraints::empty());
    }

    fn translate(&self, gfn: Gfn) -> Option<Pfn> {
        let mut frame = None;
        let walked = self.0.walk_range(&page(gfn), &mut |_, entry, level| {
            if level == 3 && entry.is_valid() {
                frame = Some(Pfn(entry.output_address().0 as u64 >> 12));
            }
            Ok(())
        });
        walked.ok().and(frame)
    }
}
