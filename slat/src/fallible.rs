//! Allocations whose callers can continue without them. All of the engine's own go through here, where tests can refuse
//! each ([`crate::inject`]).

use crate::inject::{Point, strikes};
use alloc::alloc::Layout;
use alloc::vec::Vec;
use core::ptr::NonNull;

/// Makes room for `more` elements. Returns whether there is memory for them.
#[must_use]
pub(crate) fn reserve<T>(list: &mut Vec<T>, more: usize) -> bool {
    !strikes(Point::Alloc) && list.try_reserve(more).is_ok()
}

/// As [`reserve`], and asks for no more than that.
#[must_use]
pub(crate) fn reserve_exact<T>(list: &mut Vec<T>, more: usize) -> bool {
    !strikes(Point::Alloc) && list.try_reserve_exact(more).is_ok()
}

/// Returns memory of this layout, if there is some.
///
/// # Safety
/// The layout has a size that is not zero.
pub(crate) unsafe fn alloc(layout: Layout) -> Option<NonNull<u8>> {
    // SAFETY: required of the caller.
    if strikes(Point::Alloc) { None } else { NonNull::new(unsafe { alloc::alloc::alloc(layout) }) }
}

/// As [`alloc`], and the memory is zero.
///
/// # Safety
/// As there.
pub(crate) unsafe fn alloc_zeroed(layout: Layout) -> Option<NonNull<u8>> {
    // SAFETY: required of the caller.
    if strikes(Point::Alloc) { None } else { NonNull::new(unsafe { alloc::alloc::alloc_zeroed(layout) }) }
}
