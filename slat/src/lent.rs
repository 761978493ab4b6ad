//! `Lent`: a reference to something that its holder may own, and drop last.

use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;

/// A `&'a T` inside of a value that may keep the `T` alive by itself.
///
/// A reference in an argument must stay valid until the called function ends, also where that function drops the
/// argument and, with it, the last owner. A pointer need not.
pub(crate) struct Lent<'a, T>(NonNull<T>, PhantomData<&'a T>);

// SAFETY: as `&T`.
unsafe impl<T: Sync> Send for Lent<'_, T> {}
// SAFETY: as `&T`.
unsafe impl<T: Sync> Sync for Lent<'_, T> {}

impl<'a, T> Lent<'a, T> {
    #[inline(always)]
    pub(crate) fn new(lent: &'a T) -> Self {
        Self(NonNull::from(lent), PhantomData)
    }

    #[inline(always)]
    pub(crate) fn get(self) -> &'a T {
        // SAFETY: made of a reference that lives as long.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Copy for Lent<'_, T> {}
impl<T> Clone for Lent<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Deref for Lent<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.get()
    }
}

impl<T: fmt::Debug> fmt::Debug for Lent<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
