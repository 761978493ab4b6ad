//! Allocations whose callers can continue without them. All of the engine's own go through here, where tests can refuse
//! each ([`crate::inject`]).

use crate::inject::{Point, strikes};
use alloc::alloc::Layout;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::NonNull;

/// Memory for table pages is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMemory;

errors! { NoMemory: Self => "the host has no more memory for table pages"; }

/// Makes room for `more` elements, if there is memory for them.
pub(crate) fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<(), NoMemory> {
    if strikes(Point::Alloc) { Err(NoMemory) } else { list.try_reserve(more).map_err(|_| NoMemory) }
}

/// As [`reserve`], and asks for no more than that.
pub(crate) fn reserve_exact<T>(list: &mut Vec<T>, more: usize) -> Result<(), NoMemory> {
    if strikes(Point::Alloc) { Err(NoMemory) } else { list.try_reserve_exact(more).map_err(|_| NoMemory) }
}

/// Returns `len` values, if there is memory for them.
pub(crate) fn boxed<T>(len: usize, make: impl FnMut() -> T) -> Result<Box<[T]>, NoMemory> {
    let mut list = Vec::new();
    reserve_exact(&mut list, len)?;
    list.resize_with(len, make);
    Ok(list.into_boxed_slice())
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
