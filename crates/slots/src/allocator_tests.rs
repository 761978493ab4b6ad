//! The allocator of this crate's tests: it refuses one allocation of a thread, if a test has planned that.

use core::cell::Cell;
use std::alloc::{GlobalAlloc, Layout, System};

struct Refusing;

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

std::thread_local! {
    /// Number of allocations until the one that is refused.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

fn is_refused() -> bool {
    // A thread that ends may allocate after its plan is gone.
    let left = LEFT.try_with(|left| left.replace(left.get().and_then(|left| left.checked_sub(1))));
    matches!(left, Ok(Some(0)))
}

// SAFETY: the system's allocator, or none at all.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: required of the caller.
        if is_refused() { core::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: required of the caller.
        unsafe { System.dealloc(place, layout) }
    }
}

/// Runs `work` with allocation number `nth` of this thread, from 0, refused. Returns whether `work` got there.
pub(crate) fn refusing<R>(nth: u64, work: impl FnOnce() -> R) -> (R, bool) {
    LEFT.set(Some(nth));
    let result = work();
    (result, LEFT.take().is_none())
}

#[test]
fn one_allocation_is_refused() {
    let reserve = || [1, 2, 3].map(|len| std::vec::Vec::<u8>::new().try_reserve(len).is_ok());
    assert_eq!(refusing(1, reserve), ([true, false, true], true));
    assert_eq!(refusing(3, reserve), ([true; 3], false));
    assert_eq!(reserve(), [true; 3]);
}
