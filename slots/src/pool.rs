//! Memory for the nodes of a [`Tree`](crate::tree::Tree): a free list in front of the allocator.
//!
//! An edit copies the few nodes on its path and retires as many, so the nodes that it takes are nearly always
//! those that an earlier edit retired. In the order of a block's life:
//!
//! 1. [`Pool::reserve`] asks the allocator for what the free list lacks. Nothing else here can fail.
//! 2. [`Pool::take`] fills a reserved block.
//! 3. A [`Chain`] collects retired blocks, threaded through the blocks themselves: it never allocates.
//! 4. [`Pool::reclaim`] takes a chain back after its grace period, whole, in one step.

use crate::seeded::refused;
use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;
use core::ptr::NonNull;

/// No memory for nodes, lists or logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMemory;

impl core::fmt::Display for NoMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("out of memory for nodes of the tree")
    }
}

impl core::error::Error for NoMemory {}

/// A cache-aligned `T` and the link that threads it onto a [`Chain`].
///
/// Readers may hold a reference to `body` while the writer threads the block onto a chain, so nothing ever
/// makes a reference to the whole block.
#[repr(C, align(64))]
pub(crate) struct Block<T> {
    pub(crate) body: T,
    next: Option<NonNull<Self>>,
}

/// Blocks that the holder of the chain owns.
#[must_use = "the blocks of a dropped chain are lost: reclaim it after a grace period"]
pub(crate) struct Chain<T> {
    head: Option<NonNull<Block<T>>>,
    tail: Option<NonNull<Block<T>>>,
    pub(crate) len: usize,
}

// SAFETY: holding a chain is holding its blocks, so it may go where a `T` may go. `&Chain` gives access to none.
unsafe impl<T: Send> Send for Chain<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Chain<T> {}

impl<T> Default for Chain<T> {
    fn default() -> Self {
        Self { head: None, tail: None, len: 0 }
    }
}

impl<T> Chain<T> {
    /// Puts a block in front.
    ///
    /// # Safety
    /// The block comes from a pool and is on no chain.
    pub(crate) unsafe fn push(&mut self, block: NonNull<Block<T>>) {
        // SAFETY: allocated, says the caller; only the holder of its chain touches a block's link.
        unsafe { (*block.as_ptr()).next = self.head };
        self.head = Some(block);
        self.tail = self.tail.or(self.head);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<NonNull<Block<T>>> {
        let block = self.head?;
        // SAFETY: blocks on a chain are allocated, and this chain is its own.
        self.head = unsafe { (*block.as_ptr()).next };
        self.tail = self.tail.filter(|&tail| tail != block);
        self.len -= 1;
        Some(block)
    }

    /// Moves all blocks of `other` in front of these, in one step.
    pub(crate) fn append(&mut self, mut other: Self) {
        if let Some(tail) = other.tail.take() {
            // SAFETY: as in `pop`, for `other`.
            unsafe { (*tail.as_ptr()).next = self.head };
            self.head = other.head;
            self.tail = self.tail.or(Some(tail));
            self.len += other.len;
        }
    }
}

/// The blocks of one tree that are not in use.
pub(crate) struct Pool<T> {
    pub(crate) free: Chain<T>,
    /// Blocks lent by the allocator: in the tree, retired or free.
    pub(crate) allocated: usize,
    /// Tests let the allocator fail by lowering this.
    #[cfg(test)]
    pub(crate) limit: usize,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self {
            free: Chain::default(),
            allocated: 0,
            #[cfg(test)]
            limit: usize::MAX,
        }
    }
}

impl<T> Pool<T> {
    /// Blocks that stay free however small the tree becomes.
    const SPARE: usize = 64;

    /// Bytes lent by the allocator: in the tree, retired or free.
    pub(crate) fn bytes(&self) -> usize {
        self.allocated * size_of::<Block<T>>()
    }

    /// Makes the next `count` calls of [`take`](Self::take) succeed.
    pub(crate) fn reserve(&mut self, count: usize) -> Result<(), NoMemory> {
        while self.free.len < count {
            #[cfg(test)]
            if self.allocated >= self.limit {
                return Err(NoMemory);
            }
            if refused() {
                return Err(NoMemory);
            }
            // SAFETY: a block is not of size zero, it holds a link.
            let block = NonNull::new(unsafe { alloc(Layout::new::<Block<T>>()) }).ok_or(NoMemory)?;
            self.allocated += 1;
            // SAFETY: fresh from the allocator.
            unsafe { self.free.push(block.cast()) };
        }
        Ok(())
    }

    /// A reserved block, filled with a copy of `body`.
    pub(crate) fn take(&mut self, body: &T) -> NonNull<Block<T>>
    where
        T: Copy,
    {
        let block = self.free.pop().expect("the caller has reserved the blocks it takes");
        // SAFETY: a free block is the pool's own; `body` is in a block in use, or in none.
        unsafe { (&raw mut (*block.as_ptr()).body).copy_from_nonoverlapping(body, 1) };
        block
    }

    /// Takes blocks back, and returns those that the size of the tree no longer justifies to the allocator.
    ///
    /// # Safety
    /// The blocks come from this pool, and no reader of them is left.
    pub(crate) unsafe fn reclaim(&mut self, retired: Chain<T>) {
        self.free.append(retired);
        while self.free.len > self.allocated / 2 + Self::SPARE {
            self.shrink();
        }
    }

    /// Gives every free block back.
    #[cfg(test)]
    pub(crate) fn trim(&mut self) {
        while self.free.len > 0 {
            self.shrink();
        }
    }

    /// Gives one free block back to the allocator.
    fn shrink(&mut self) {
        if let Some(block) = self.free.pop() {
            self.allocated -= 1;
            // SAFETY: allocated by `reserve` with this layout; free, so it has no reader.
            unsafe { dealloc(block.as_ptr().cast(), Layout::new::<Block<T>>()) };
        }
    }
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        while self.free.len > 0 {
            self.shrink();
        }
    }
}
