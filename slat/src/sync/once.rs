//! A value that is made at its first use and stays: one null pointer before.

use super::prim::{AtomicBool, AtomicPtr, Relaxed};
use alloc::boxed::Box;
use core::marker::PhantomData;
use core::ptr::null_mut;

/// A lazily made value. See the module's header.
pub(crate) struct Once<T>(AtomicPtr<T>, PhantomData<T>);

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self(AtomicPtr::new(null_mut()), PhantomData)
    }
}

impl<T> Once<T> {
    /// Returns the value, if it has been made.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&T> {
        // Pairs with the exchange in `set_or`: the value before the pointer.
        let value = self.0.load(order!(once.get, Acquire));
        // SAFETY: null, or from `into_raw` in `set_or`; freed when this is dropped, and `&self` keeps it.
        unsafe { value.as_ref() }
    }

    /// Like [`set_or`](Self::set_or), and sets `flag` before any thread can find the value. A thread that uses the
    /// value and then fences makes the flag visible to every thread whose fence comes later.
    pub(crate) fn set_after(&self, flag: &AtomicBool, value: T, back: impl FnOnce(T)) -> &T {
        // Before the value, which carries it along.
        flag.store(true, Relaxed);
        self.set_or(value, back)
    }

    /// Sets the value; returns it, or the value of a faster thread.
    pub(crate) fn set(&self, value: T) -> &T {
        self.set_or(value, drop)
    }

    /// Like [`set`](Self::set); `back` gets the value if another thread was faster.
    pub(crate) fn set_or(&self, value: T, back: impl FnOnce(T)) -> &T {
        let fresh = Box::into_raw(Box::new(value));
        // Publishes the value; or makes the value of a faster thread visible.
        let (set, faster) = (order!(once.set, Release), order!(once.faster, Acquire));
        match self.0.compare_exchange(null_mut(), fresh, set, faster) {
            // SAFETY: linked just now; freed when this is dropped.
            Ok(_) => unsafe { &*fresh },
            Err(faster) => {
                // SAFETY: from `into_raw` just now, and linked nowhere.
                back(*unsafe { Box::from_raw(fresh) });
                // SAFETY: as in `get`: it is not null.
                unsafe { &*faster }
            }
        }
    }
}

impl<T> Drop for Once<T> {
    fn drop(&mut self) {
        let value = self.0.load(Relaxed);
        if !value.is_null() {
            // SAFETY: from `into_raw` in `set_or`; `&mut self`: nothing borrows it any more, and this comes after `set_or`.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}
