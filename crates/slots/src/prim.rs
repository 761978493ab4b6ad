//! The cost of a tree search and of a node copy, for simulated CPUs.
//!
//! Only the package `slat-slots-virtual`, built from the same source under `--cfg virtual_time`, charges for anything here.

#[cfg(virtual_time)]
pub(crate) use slat_machine::{copied, forget, read_at_once as read};

/// Loads of words of a node, none of which depends on another.
#[cfg(not(virtual_time))]
#[inline(always)]
pub(crate) fn read(_words: impl Iterator<Item = *const ()>) {}

/// A copy of `from` was made in `to`.
#[cfg(not(virtual_time))]
#[inline(always)]
pub(crate) fn copied<T>(_from: &T, _to: &T) {}

/// A block was allocated, or is about to be freed.
#[cfg(not(virtual_time))]
#[inline(always)]
pub(crate) fn forget<T>(_block: *const T) {}

/// The address of a word, for [`read`].
#[inline(always)]
pub(crate) fn word<T>(word: &T) -> *const () {
    core::ptr::from_ref(word).cast()
}
