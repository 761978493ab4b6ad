//! The seats of a read side: those that it begins with, and blocks of more where all of these are taken.
//!
//! A thread that holds a seat, by a snapshot of the memslots or a walk, may ask for another one. Where every seat were held by
//! such a thread, each would wait for another one, for ever. So the set grows: by blocks of 64, 128, 256, … seats, which
//! stay until the VM is dropped. Grace periods look at all of them.

use super::{ROW, Seat};
use crate::sync::prim::{Acquire, AtomicPtr, Padded, Relaxed, Release};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::null_mut;

/// Blocks of more seats, each with twice as many as the one before: four million in all.
const BLOCKS: usize = if cfg!(loom) { 1 } else { 16 };
/// Seats in the first of them.
const FIRST: usize = if cfg!(any(loom, shuttle)) { 1 } else { 64 };

/// See the module's header.
#[derive(Debug)]
pub(super) struct Seats {
    first: Box<[Padded<Seat>]>,
    /// Null, or as many seats as [`len_of`] says, linked once and for all. After a null one all are null.
    blocks: Box<[AtomicPtr<Padded<Seat>>; BLOCKS]>,
}

/// How many seats a block has.
const fn len_of(block: usize) -> usize {
    FIRST << block
}

impl Seats {
    /// So many, until it grows.
    pub(super) fn new(seats: usize) -> Self {
        let blocks = Box::new(core::array::from_fn(|_| AtomicPtr::new(null_mut())));
        Self { first: (0..seats).map(|_| Padded::default()).collect(), blocks }
    }

    /// One of those that it began with.
    pub(super) fn get(&self, index: usize) -> Option<&Seat> {
        self.first.get(index).map(|seat| &seat.0)
    }

    /// All but the first `skipped`.
    pub(super) fn from(&self, skipped: usize) -> impl Iterator<Item = &Seat> {
        let first = self.first.get(skipped..).unwrap_or_default();
        first.iter().chain(self.blocks().flatten()).map(|seat| &seat.0)
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Seat> {
        self.rows().flatten().map(|seat| &seat.0)
    }

    /// All of them, up to [`ROW`] at once.
    pub(super) fn rows(&self) -> impl Iterator<Item = &[Padded<Seat>]> {
        let blocks = self.blocks().take(if seeded!(SeatsUnlooked) { 0 } else { BLOCKS });
        self.first.chunks(ROW).chain(blocks.flat_map(|block| block.chunks(ROW)))
    }

    fn blocks(&self) -> impl Iterator<Item = &[Padded<Seat>]> {
        (0..BLOCKS).map_while(|block| {
            // SAFETY: null, or linked by `grow` with so many seats, and freed when the read side is dropped.
            unsafe { self.block(block).as_ref() }
        })
    }

    /// Null where it has not been made.
    fn block(&self, block: usize) -> *mut [Padded<Seat>] {
        // ORDER(seats): Acquire pairs with the Release in `grow`: the seats are made. A writer that finds none here, after its
        // fence, is seen by every section on a seat of this block: its holder has read the link before the fence of `claim`.
        let first = self.blocks[block].load(Acquire);
        core::ptr::slice_from_raw_parts_mut(first, len_of(block))
    }

    /// Makes the next block. False where all are made, or where there is no memory.
    #[cold]
    pub(super) fn grow(&self) -> bool {
        let Some(block) = (0..BLOCKS).find(|&block| self.block(block).is_null()) else { return false };
        let (len, mut fresh) = (len_of(block), Vec::new());
        if injected!(Alloc) || fresh.try_reserve_exact(len).is_err() {
            return false;
        }
        fresh.resize_with(len, Padded::<Seat>::default);
        let fresh = Box::into_raw(fresh.into_boxed_slice());
        // ORDER(seats): Release: the seats before the link.
        let order = unless_seeded!(SeatsRelaxed, Release);
        if self.blocks[block].compare_exchange(null_mut(), fresh.cast(), order, Relaxed).is_err() {
            // SAFETY: from `into_raw` just now, and linked nowhere: another thread was faster.
            drop(unsafe { Box::from_raw(fresh) });
        }
        true
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        for block in (0..BLOCKS).map(|block| self.block(block)).filter(|block| !block.is_null()) {
            // SAFETY: from `into_raw` in `grow`, with this length; nothing borrows a seat any more.
            drop(unsafe { Box::from_raw(block) });
        }
    }
}
