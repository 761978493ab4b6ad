//! The global allocator: where the system refuses memory, the process ends with one line and status 2.
//!
//! Rust's default is to abort. The engine itself returns an error where it cannot get a table page; its table pages
//! come from an arena, not from this allocator.

use crate::error::{self, Error};
use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, except that a failed allocation ends the process.
#[derive(Debug)]
pub struct OrEnd;

// SAFETY: each method passes its arguments to the system's allocator and never returns null.
unsafe impl GlobalAlloc for OrEnd {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`, which is also the contract of the system's allocator.
        or_end(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        or_end(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`; `old` comes from this allocator, so it comes from the system's.
        or_end(unsafe { System.realloc(old, layout, size) }, size)
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: as in `realloc`.
        unsafe { System.dealloc(old, layout) }
    }
}

#[inline]
fn or_end(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() {
        none(bytes)
    }
    memory
}

/// Prints the error without allocating.
#[cold]
fn none(bytes: usize) -> ! {
    error::end(&Error::OutOfMemory(bytes))
}
