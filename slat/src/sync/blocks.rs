//! A set of cells that never move and whose number grows: the first cells, and further blocks when all are taken.
//!
//! Each block has twice as many cells as the one before. It is linked once, and stays until the set is dropped: a
//! thread may keep a cell that it has found.

use super::prim::{AtomicPtr, Padded, Relaxed};
use crate::fallible;
use alloc::boxed::Box;
use core::ptr::null_mut;

/// A growing set of cells. See the module's header. It grows by at most `BLOCKS` blocks.
#[derive(Debug)]
pub(crate) struct Blocks<T, const BLOCKS: usize> {
    first: Box<[Padded<T>]>,
    /// Cells in the first block.
    len: usize,
    /// Null, or a block of cells, linked once. After a null pointer all are null.
    blocks: Box<[AtomicPtr<Padded<T>>; BLOCKS]>,
}

impl<T: Default, const BLOCKS: usize> Blocks<T, BLOCKS> {
    /// `first` cells; then blocks of `len`, twice `len`, and so on.
    pub(crate) fn new(first: usize, len: usize) -> Self {
        let blocks = Box::new(core::array::from_fn(|_| AtomicPtr::new(null_mut())));
        Self { first: (0..first).map(|_| Padded::default()).collect(), len, blocks }
    }

    /// The first cells.
    #[inline(always)]
    pub(crate) fn first(&self) -> &[Padded<T>] {
        &self.first
    }

    /// Returns the existing blocks, up to `most`.
    #[inline(always)]
    pub(crate) fn beyond(&self, most: usize) -> impl Iterator<Item = &[Padded<T>]> {
        (0..most).map_while(|block| self.get(block))
    }

    /// Makes the next block. False if all exist, or without memory.
    #[cold]
    pub(crate) fn grow(&self) -> bool {
        let Some(block) = (0..BLOCKS).find(|&block| self.block(block).is_null()) else { return false };
        let Ok(fresh) = fallible::boxed(self.len << block, Padded::<T>::default) else { return false };
        let fresh = Box::into_raw(fresh);
        // The cells before the link.
        let order = order!(blocks.link, Release);
        if self.blocks[block].compare_exchange(null_mut(), fresh.cast(), order, Relaxed).is_err() {
            // SAFETY: from `into_raw` just now, and linked nowhere: another thread was faster.
            drop(unsafe { Box::from_raw(fresh) });
        }
        true
    }
}

impl<T, const BLOCKS: usize> Blocks<T, BLOCKS> {
    /// Returns a block, if it exists.
    #[inline(always)]
    pub(crate) fn get(&self, block: usize) -> Option<&[Padded<T>]> {
        // SAFETY: null, or linked by `grow` with this length, and freed when the set is dropped.
        unsafe { self.block(block).as_ref() }
    }

    /// Returns a block, or null if it does not exist.
    fn block(&self, block: usize) -> *mut [Padded<T>] {
        // Pairs with the Release in `grow`: the cells are made.
        let first = self.blocks[block].load(order!(blocks.follow, Acquire));
        core::ptr::slice_from_raw_parts_mut(first, self.len << block)
    }
}

impl<T, const BLOCKS: usize> Drop for Blocks<T, BLOCKS> {
    fn drop(&mut self) {
        for block in (0..BLOCKS).map(|block| self.block(block)).filter(|block| !block.is_null()) {
            // SAFETY: from `into_raw` in `grow`, with this length; nothing borrows a cell any more.
            drop(unsafe { Box::from_raw(block) });
        }
    }
}
