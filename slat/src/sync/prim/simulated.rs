//! The primitives in virtual time: those of a simulated machine whose CPUs run the engine.

use super::Ordering;

pub(crate) use slat_machine::lock::{RawMutex, RawRwLock};
pub(crate) use slat_machine::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Instant, fence, pause as spin_loop,
};

/// Thread-private words, and counters, cost no simulated time.
pub(crate) fn quiet(cell: &AtomicU64) -> &core::sync::atomic::AtomicU64 {
    cell.free()
}

/// A scan pays for one load of each line, and reads its other words free.
pub(crate) fn scanned(cell: &AtomicU64) -> &core::sync::atomic::AtomicU64 {
    if begins_a_line(cell) {
        cell.load(Ordering::Relaxed);
    }
    cell.free()
}

/// Filling a line costs one store.
pub(crate) fn filled(cell: &AtomicU64) -> &core::sync::atomic::AtomicU64 {
    if begins_a_line(cell) {
        cell.store(0, Ordering::Relaxed);
    }
    cell.free()
}

/// Pays for a load of each line, and a look at each word.
pub(crate) use slat_machine::read_words as read_whole;

/// Pays for plain instructions that are more than those between shared operations.
pub(crate) use slat_machine::full_path;

/// Pays for the lines of what was written.
pub(crate) use slat_machine::filled as written_whole;

fn begins_a_line(cell: &AtomicU64) -> bool {
    core::ptr::from_ref(cell).addr().is_multiple_of(64)
}
