//! How much memory a thread holds at most while it does something.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    /// Bytes that this thread has taken and not given back, and the most that it had since a measurement began. What another thread
    /// gives back makes the first one negative there.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn note(bytes: isize) {
    // A thread that ends has none any more.
    _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + bytes, most.max(now + bytes)));
    });
}

// SAFETY: each call is the system allocator's, with the same arguments; what is noted allocates nothing.
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
        // While it is moved there are both.
        note(size as isize);
        // SAFETY: as above.
        let new = unsafe { System.realloc(at, layout, size) };
        note(-(layout.size() as isize));
        new
    }
}

/// The most bytes that `work` held at a time.
pub fn most(work: impl FnOnce()) -> usize {
    let (before, most) = HELD.get();
    HELD.set((before, before));
    work();
    let (now, reached) = HELD.get();
    HELD.set((now, most.max(reached)));
    (reached - before) as usize
}
