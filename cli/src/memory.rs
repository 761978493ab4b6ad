//! Memory of the process itself: where the system has none left, the process ends with one line and status 2.
//!
//! Rust's own answer is to abort. The engine gives back an error where a table cannot be had; its table pages come from an
//! arena, which is not allocated here.

use crate::error::{self, Error};
use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, which never returns without memory.
#[derive(Debug)]
pub struct OrEnd;

// SAFETY: the system's allocator, asked as it was asked; a null pointer does not come back.
unsafe impl GlobalAlloc for OrEnd {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises.
        or_end(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises.
        or_end(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promises.
        or_end(unsafe { System.realloc(old, layout, size) }, size)
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises.
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

/// Tells so with what needs no memory.
#[cold]
fn none(bytes: usize) -> ! {
    error::end(&Error::OutOfMemory(bytes))
}
