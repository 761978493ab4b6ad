//! Primitives that faults share between threads: locks, atomics, thread-local numbers.
//!
//! Under `--cfg virtual_time` (package `slat-mm-virtual`, the same source) they are those of a simulated
//! machine, like `slat::sync::prim`: each operation takes the time on a simulated CPU that it would take on a
//! real one. Locks that no fault for new memory takes stay real: no other simulated CPU runs while one is held.

#[cfg(not(virtual_time))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(virtual_time))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64};

#[cfg(virtual_time)]
pub(crate) use simulated::*;

#[cfg(virtual_time)]
mod simulated {
    pub(crate) use slat_machine::lock::{Mutex, RwLock};
    use slat_machine::lock::{RawMutex, RawRwLock};
    pub(crate) use slat_machine::{AtomicPtr, AtomicU64};

    pub(crate) type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;
    pub(crate) type RwLockReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, RawRwLock, T>;
    pub(crate) type RwLockWriteGuard<'a, T> = lock_api::RwLockWriteGuard<'a, RawRwLock, T>;

    /// A simulated thread does not sleep on it: it looks again after each pause.
    #[derive(Debug)]
    pub(crate) struct Condvar;

    #[expect(clippy::unused_self, reason = "called as parking_lot's")]
    impl Condvar {
        pub(crate) const fn new() -> Self {
            Self
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            MutexGuard::unlocked(guard, slat_machine::pause);
        }

        pub(crate) fn notify_all(&self) {}
    }
}

/// Fills a page of 4 KiB with zeroes.
///
/// # Safety
/// The caller has the only right to the page's bytes.
#[cfg(not(virtual_time))]
pub(crate) unsafe fn zero_page(page: *mut u8) {
    // SAFETY: the caller keeps the condition.
    unsafe { page.write_bytes(0, slat::PAGE_SIZE as usize) };
}

/// Charges the cost of zeroing. Simulated pages have no contents.
///
/// # Safety
/// None needed.
#[cfg(virtual_time)]
pub(crate) unsafe fn zero_page(_: *mut u8) {
    slat_machine::zero_page();
}

/// Charges the cost of reading a page of 4 KiB word by word: nothing here, where the page is read.
#[cfg(not(virtual_time))]
#[inline(always)]
pub(crate) fn page_is_read() {}

/// Charges the cost of copying so many bytes: nothing here, where they are copied.
#[cfg(not(virtual_time))]
#[inline(always)]
pub(crate) fn bytes_are_copied(_: usize) {}

#[cfg(virtual_time)]
pub(crate) use slat_machine::{copy as bytes_are_copied, read_page as page_is_read};

/// Returns the number of the calling thread. Numbers of threads that have ended are reused, lowest first.
#[cfg(not(virtual_time))]
#[inline]
pub(crate) fn thread_number() -> usize {
    use std::collections::BTreeSet;

    struct Number(usize);

    /// Free numbers, and how many numbers exist.
    static NUMBERS: Mutex<(BTreeSet<usize>, usize)> = Mutex::new((BTreeSet::new(), 0));

    impl Drop for Number {
        fn drop(&mut self) {
            NUMBERS.lock().0.insert(self.0);
        }
    }

    fn take() -> Number {
        let mut numbers = NUMBERS.lock();
        let fresh = numbers.1;
        Number(numbers.0.pop_first().unwrap_or_else(|| {
            numbers.1 += 1;
            fresh
        }))
    }

    thread_local! { static MINE: Number = take(); }
    // A thread that is about to end shares number 0.
    MINE.try_with(|mine| mine.0).unwrap_or(0)
}

/// Returns the number of the simulated CPU.
#[cfg(virtual_time)]
pub(crate) fn thread_number() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    slat_machine::thread_local! { static MINE: Cell<usize> = const { Cell::new(usize::MAX) }; }
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Relaxed));
        }
        mine.get()
    })
}
