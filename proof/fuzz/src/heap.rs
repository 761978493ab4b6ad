//! Measures the most memory that a thread holds during some work.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    /// Bytes that this thread has allocated and not freed, and the most since a measurement began. A free of another
    /// thread's memory makes the first number negative.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn note(bytes: isize) {
    // A thread that ends has no counter any more.
    _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + bytes, most.max(now + bytes)));
    });
}

// SAFETY: each call is the system allocator's, with the same arguments; the note allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // During the move both blocks exist.
        note(size as isize);
        // SAFETY: as above.
        let new = unsafe { System.realloc(at, layout, size) };
        note(-(layout.size() as isize));
        new
    }
}

/// Returns the most bytes that `work` held at a time.
pub fn most(work: impl FnOnce()) -> usize {
    let (before, most) = HELD.get();
    HELD.set((before, before));
    work();
    let (now, reached) = HELD.get();
    HELD.set((now, most.max(reached)));
    (reached - before) as usize
}
