//! The primitives in virtual time: those of a simulated machine, on whose CPUs the engine runs.

use super::Ordering;

pub(crate) use slat_machine::lock::{RawMutex, RawRwLock};
pub(crate) use slat_machine::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Instant, fence, pause as spin_loop,
};

/// What no other thread uses, and what only counts, is free: it is not what costs time.
pub(crate) fn quiet(cell: &AtomicU64) -> &core::sync::atomic::AtomicU64 {
    cell.free()
}

/// A scan loads each line once, and then has its words.
pub(crate) fn scanned(cell: &AtomicU64) -> &core::sync::atomic::AtomicU64 {
    if begins_a_line(cell) {
        cell.load(Ordering::Relaxed);
    }
    cell.free()
}

/// Stores to a line are one, as far as it matters where the line is.
pub(crate) fn filled(cell: &AtomicU64) -> &core::sync::atomic::AtomicU64 {
    if begins_a_line(cell) {
        cell.store(0, Ordering::Relaxed);
    }
    cell.free()
}

/// Loads each line of it, and looks at each word.
pub(crate) fn read_whole<T>(whole: &T) {
    slat_machine::read_words(whole);
}

/// So many bytes have been copied.
pub(crate) fn copied(bytes: usize) {
    slat_machine::copy(bytes);
}

fn begins_a_line(cell: &AtomicU64) -> bool {
    core::ptr::from_ref(cell).addr().is_multiple_of(64)
}
