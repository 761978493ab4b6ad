//! `Owning`: a value, and the owner of what the value borrows.

use core::fmt;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};

/// A value that may borrow from what `owner` keeps, and that is dropped before it.
///
/// A reference in an argument must stay valid until the called function ends, also where that function drops the
/// argument and, with it, the last owner. References inside of a [`MaybeUninit`] need not.
pub(crate) struct Owning<T, O> {
    value: MaybeUninit<T>,
    _owner: O,
}

impl<T, O> Owning<T, O> {
    #[inline(always)]
    pub(crate) fn new(value: T, owner: O) -> Self {
        Self { value: MaybeUninit::new(value), _owner: owner }
    }
}

impl<T, O> Deref for Owning<T, O> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: initialized by `new`, until `drop`.
        unsafe { self.value.assume_init_ref() }
    }
}

impl<T, O> DerefMut for Owning<T, O> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { self.value.assume_init_mut() }
    }
}

impl<T, O> Drop for Owning<T, O> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: as in `deref`; not used again. Fields are dropped after this, and the owner is one.
        unsafe { self.value.assume_init_drop() }
    }
}

impl<T: fmt::Debug, O> fmt::Debug for Owning<T, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
