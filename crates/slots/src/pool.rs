//! Memory for the nodes of a [`Tree`](crate::tree::Tree): a free list in front of the allocator.
//!
//! An edit copies the few nodes on its path and retires as many, so it mostly reuses nodes that earlier edits
//! retired. The life of a block:
//!
//! 1. [`Pool::reserve`] allocates what the free list lacks. Only this step can fail.
//! 2. [`Pool::take`] fills a reserved block.
//! 3. A [`Chain`] collects retired blocks, linked through the blocks themselves, so it never allocates.
//! 4. [`Pool::reclaim`] takes a whole chain back after its grace period, in one step.

use crate::prim;
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

/// A cache-aligned `T`, and the link that connects it to a [`Chain`].
///
/// Readers may hold a reference to `body` while the writer links the block to a chain, so no code creates a
/// reference to the whole block.
#[repr(C, align(64))]
pub(crate) struct Block<T> {
    pub(crate) body: T,
    next: Option<NonNull<Self>>,
}

/// Blocks owned by the holder of the chain.
#[must_use = "the blocks of a dropped chain are lost: reclaim it after a grace period"]
pub(crate) struct Chain<T> {
    head: Option<NonNull<Block<T>>>,
    tail: Option<NonNull<Block<T>>>,
    pub(crate) len: usize,
}

// SAFETY: a chain owns its blocks, so it may be sent like a `T`. `&Chain` gives access to none.
unsafe impl<T: Send> Send for Chain<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Chain<T> {}

impl<T> Default for Chain<T> {
    fn default() -> Self {
        Self { head: None, tail: None, len: 0 }
    }
}

impl<T> Chain<T> {
    /// Adds a block at the front.
    ///
    /// # Safety
    /// The block comes from a pool and is on no chain.
    pub(crate) unsafe fn push(&mut self, block: NonNull<Block<T>>) {
        // SAFETY: the caller's block is allocated; only the holder of its chain accesses a block's link.
        unsafe { (*block.as_ptr()).next = self.head };
        self.head = Some(block);
        self.tail = self.tail.or(self.head);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<NonNull<Block<T>>> {
        let block = self.head?;
        // SAFETY: blocks on a chain are allocated, and this chain owns them.
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
    /// Allocated blocks: in the tree, retired or free.
    pub(crate) allocated: usize,
    /// Tests lower this to make the allocator fail.
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
    /// Number of blocks that stay free even if the tree is small.
    const SPARE: usize = 64;

    /// Returns the allocated bytes: in the tree, retired or free.
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
            // SAFETY: a block contains a link, so its size is not zero.
            let block = NonNull::new(unsafe { alloc(Layout::new::<Block<T>>()) }).ok_or(NoMemory)?;
            let block = block.cast::<Block<T>>();
            prim::forget(block.as_ptr());
            self.allocated += 1;
            // SAFETY: newly allocated.
            unsafe { self.free.push(block) };
        }
        Ok(())
    }

    /// Returns a reserved block with a copy of `body`.
    pub(crate) fn take(&mut self, body: &T) -> NonNull<Block<T>>
    where
        T: Copy,
    {
        let block = self.free.pop().expect("the caller has reserved the blocks it takes");
        // SAFETY: the pool owns a free block; `body` is in a used block or in none.
        unsafe { (&raw mut (*block.as_ptr()).body).copy_from_nonoverlapping(body, 1) };
        block
    }

    /// Takes blocks back, and frees those that the tree's size does not justify.
    ///
    /// # Safety
    /// The blocks come from this pool, and all their readers have finished.
    pub(crate) unsafe fn reclaim(&mut self, retired: Chain<T>) {
        self.free.append(retired);
        while self.free.len > self.allocated / 2 + Self::SPARE {
            self.shrink();
        }
    }

    /// Frees every free block.
    #[cfg(test)]
    pub(crate) fn trim(&mut self) {
        while self.free.len > 0 {
            self.shrink();
        }
    }

    /// Frees one free block.
    fn shrink(&mut self) {
        if let Some(block) = self.free.pop() {
            self.allocated -= 1;
            prim::forget(block.as_ptr());
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
