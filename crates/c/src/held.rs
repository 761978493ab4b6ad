//! `Held`: a value that one call at a time may use. Its state says which calls may.

use crate::slat_status;
use crate::slat_status::SLAT_EBUSY;
use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU8, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// No call uses it; the initial state.
pub(crate) const OUT: u8 = 0;
/// No call uses it, and it is in the guest, or in a use.
pub(crate) const IN_GUEST: u8 = 1;
/// A call uses it.
const IN_CALL: u8 = 2;

/// A value that one call at a time may use.
pub(crate) struct Held<T> {
    state: AtomicU8,
    value: UnsafeCell<T>,
}

impl<T> fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("state", &self.state).finish_non_exhaustive()
    }
}

/// The exclusive access of a call. Its drop sets the state to `then`.
pub(crate) struct Has<'h, T> {
    held: &'h Held<T>,
    pub(crate) then: u8,
}

impl<T> Held<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { state: AtomicU8::new(OUT), value: UnsafeCell::new(value) }
    }

    /// Takes exclusive access if the state is `state`.
    pub(crate) fn have(&self, state: u8) -> Result<Has<'_, T>, slat_status> {
        let won = self.state.compare_exchange(state, IN_CALL, Acquire, Relaxed);
        won.map(|_| Has { held: self, then: state }).map_err(|_| SLAT_EBUSY)
    }

    /// Returns a pointer to the value without exclusive access, if the state is `state`.
    pub(crate) fn peek(&self, state: u8) -> Option<*const T> {
        (self.state.load(Relaxed) == state).then_some(self.value.get().cast_const())
    }
}

impl<T> Deref for Has<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the state gives this call sole access.
        unsafe { &*self.held.value.get() }
    }
}

impl<T> DerefMut for Has<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the state gives this call sole access; `peek` refuses meanwhile.
        unsafe { &mut *self.held.value.get() }
    }
}

impl<T> Drop for Has<'_, T> {
    fn drop(&mut self) {
        self.held.state.store(self.then, Release);
    }
}
