//! Memory that a thread has allocated and not freed: the allocator of these tests counts.

use core::cell::Cell;
use std::alloc::{GlobalAlloc, Layout, System};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

std::thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // A thread that ends frees memory after its count is gone.
    let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
}

// SAFETY: the system's allocator, and a number beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.realloc(place, layout, size) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.dealloc(place, layout) }
    }
}

/// Returns the bytes that `work` allocates and does not free, on this thread.
pub(super) fn leaked(work: impl FnOnce()) -> i64 {
    let before = LIVE.get();
    work();
    LIVE.get() - before
}

#[test]
fn bytes_that_are_not_freed_are_counted() {
    assert_eq!(leaked(|| drop(std::vec![0_u8; 100])), 0);
    let mut kept = std::vec::Vec::new();
    assert_eq!(leaked(|| kept = std::vec![0_u8; 100]), 100);
}
