//! For tests: the greatest number of entries that a thread visits between two yields, in a section of the read side or
//! in a counted walk of a shadow.

use core::cell::Cell;

std::thread_local! {
    /// Open sections and counted walks.
    static OPEN: Cell<u32> = const { Cell::new(0) };
    /// Entries since the first of them was opened; and the maximum.
    static NOW: Cell<u64> = const { Cell::new(0) };
    static LONGEST: Cell<u64> = const { Cell::new(0) };
}

/// A section begins.
pub(crate) fn begins() {
    OPEN.set(OPEN.get() + 1);
}

/// A section ends.
pub(crate) fn ends() {
    OPEN.set(OPEN.get().saturating_sub(1));
    if OPEN.get() == 0 {
        NOW.set(0);
    }
}

/// Entries are visited.
pub(crate) fn visits(entries: u64) {
    if OPEN.get() > 0 {
        NOW.set(NOW.get() + entries);
        LONGEST.set(LONGEST.get().max(NOW.get()));
    }
}

/// Returns the greatest number of entries that `work` visits in one section.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn longest<R>(work: impl FnOnce() -> R) -> (R, u64) {
    LONGEST.set(0);
    let result = work();
    (result, LONGEST.get())
}
