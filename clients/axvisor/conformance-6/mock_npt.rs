//! Stands for the tests' mock: slat's tables, on the mock's frames.

use super::test_utils::{
    ALLOC_COUNT, ALLOC_SHOULD_FAIL, BASE_PADDR, DEALLOC_COUNT, MEMORY_LEN, MockHal, NEXT_PADDR,
};
use ax_memory_addr::{PhysAddr, VirtAddr};
use core::sync::atomic::Ordering::SeqCst;
use slat::table::formats::Arm64NoAd;
use slat_nested::{Frames, NestedPageTable};

pub struct MockFrames;

impl Frames for MockFrames {
    fn alloc() -> Option<PhysAddr> {
        if ALLOC_SHOULD_FAIL.load(SeqCst) {
            return None;
        }
        let frame = NEXT_PADDR.fetch_add(4096, SeqCst);
        let frame = (frame < MEMORY_LEN + BASE_PADDR).then(|| PhysAddr::from_usize(frame))?;
        ALLOC_COUNT.fetch_add(1, SeqCst);
        Some(frame)
    }

    fn dealloc(_: PhysAddr) {
        DEALLOC_COUNT.fetch_add(1, SeqCst);
    }

    fn seen_at(frame: PhysAddr) -> VirtAddr {
        MockHal::mock_phys_to_virt(frame)
    }
}

pub type MockNestedPageTable = NestedPageTable<Arm64NoAd, MockFrames>;
