//! The global allocator: first fit over the memory that `link.ld` leaves behind the image.

use linked_list_allocator::LockedHeap;

unsafe extern "C" {
    static mut heap_start: u8;
    static mut heap_end: u8;
}

#[global_allocator]
static HEAP: LockedHeap = LockedHeap::empty();

/// Gives the allocator its memory.
///
/// # Safety
/// Called once, before anything is allocated.
pub(crate) unsafe fn init() {
    let (start, end) = (&raw mut heap_start, &raw mut heap_end);
    // SAFETY: the linker script gives this range to nothing else; the caller promises a single call.
    unsafe { HEAP.lock().init(start, end as usize - start as usize) };
}
