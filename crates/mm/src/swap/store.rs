//! Storing a batch of pages as copies.
//!
//! Compressible pages go to the pool at once. Writes of the others start, and [`Storing::wait`] waits for them.
//! If the pool is full, its oldest copies move to a device meanwhile, so that the next batch finds room.

use super::copy_table::Account;
use super::device::{Bytes, PAGE};
use super::entry::SwapEntry;
use super::error::SwapError;
use super::write_back::WriteBack;
use super::writing::Writing;
use super::{HeldCopy, Swap, pool};
use crate::swap::copy_table::Place;
use lz4_flex::block::{compress_into, get_maximum_output_size};
use rapidhash::v3::rapidhash_v3;
use slat::Pfn;
use std::sync::Arc;

/// A batch being stored. Dropping it waits, and frees what was stored.
#[derive(Debug)]
#[must_use]
pub(crate) struct Storing<'a> {
    swap: &'a Swap,
    owner: Arc<Account>,
    /// In the order of the pages. `None` while a page is being written to a device.
    copies: Vec<Option<Result<HeldCopy<'a>, SwapError>>>,
    /// Pages being written to devices, with their checksums.
    on_their_way: Vec<(Pfn, u64)>,
    writing: Option<Writing<'a>>,
    moving: Option<WriteBack<'a>>,
}

impl Swap {
    /// Starts to store these pages, and charges their pool memory to `owner`. Until the result is dropped the
    /// pages stay allocated, and no thread writes to them. May sleep.
    pub(crate) fn store(&self, pages: &[Pfn], owner: &Arc<Account>) -> Storing<'_> {
        let (mut copies, mut on_their_way) = (Vec::new(), Vec::new());
        let mut moving = None;
        for &page in pages {
            // SAFETY: a frame of this arena that the caller may read; no thread writes to it.
            let bytes: &Bytes = unsafe { self.bytes(page).as_ref() };
            match self.store_at_once(bytes, owner) {
                Err(error) if !self.ports.is_empty() => {
                    if error == SwapError::Full && self.memory && moving.is_none() {
                        moving = Some(self.begin_write_back(pages.len(), None));
                    }
                    copies.push(None);
                    on_their_way.push((page, rapidhash_v3(bytes)));
                }
                copy => {
                    if let Err(error) = copy {
                        self.table.lock().failed_to_store(error);
                    }
                    copies.push(Some(copy));
                }
            }
        }
        let asked = on_their_way.iter().map(|&(page, _)| self.bytes(page));
        // SAFETY: the caller keeps the condition; `Storing` waits.
        let writing = (!on_their_way.is_empty()).then(|| unsafe { Writing::begin(self, asked) });
        Storing { swap: self, owner: owner.clone(), copies, on_their_way, writing, moving }
    }

    /// Stores a page that needs no device.
    fn store_at_once(&self, bytes: &Bytes, owner: &Arc<Account>) -> Result<HeldCopy<'_>, SwapError> {
        if is_zero(bytes) {
            return Ok(HeldCopy::new(self, self.table.lock().add_zero()));
        }
        if !self.memory {
            return Err(SwapError::Full);
        }
        self.store_in_memory(bytes, owner).map(|entry| HeldCopy::new(self, entry))
    }

    fn store_in_memory(&self, bytes: &Bytes, owner: &Arc<Account>) -> Result<SwapEntry, SwapError> {
        let mut buffer = [0; get_maximum_output_size(PAGE)];
        // The buffer fits any result.
        let len = compress_into(bytes, &mut buffer).map_err(|_| SwapError::Incompressible)?;
        if len > pool::LARGEST {
            return Err(SwapError::Incompressible);
        }
        let sum = rapidhash_v3(bytes);
        let mut table = self.table.lock();
        let slot = table.pool.insert(&self.arena, len)?;
        // Under the lock, although no other thread knows the slot: the copy is short.
        table.pool.extent(slot).write(&self.arena, &buffer[..len]);
        table.add(&self.arena, Place::Memory(slot), sum, owner)
    }
}

impl<'a> Storing<'a> {
    /// Waits, and returns the copies in the order of the pages. May sleep.
    pub(crate) fn wait(mut self) -> Vec<Result<HeldCopy<'a>, SwapError>> {
        let places = self.writing.take().map_or_else(Vec::new, Writing::wait);
        let mut places = places.into_iter().zip(std::mem::take(&mut self.on_their_way));
        let has_moved = self.moving.take().is_some_and(|moving| moving.wait() > 0);
        let mut copy = |copy: Option<_>| {
            if let Some(copy) = copy {
                return copy;
            }
            let (place, (page, sum)) = places.next().ok_or(SwapError::Full)?;
            if place.is_err() && has_moved {
                // SAFETY: the condition of `store`.
                return self.swap.store_at_once(unsafe { self.swap.bytes(page).as_ref() }, &self.owner);
            }
            let entry = self.swap.table.lock().add(&self.swap.arena, place?, sum, &self.owner)?;
            Ok(HeldCopy::new(self.swap, entry))
        };
        let copies: Vec<_> = std::mem::take(&mut self.copies).into_iter().map(&mut copy).collect();
        if copies.iter().any(|copy| matches!(copy, Err(SwapError::Full))) {
            self.swap.table.lock().found_full();
        }
        copies
    }
}

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        for place in self.writing.take().map_or_else(Vec::new, Writing::wait).into_iter().flatten() {
            self.swap.table.lock().forget(&self.swap.arena, place);
        }
    }
}

fn is_zero(bytes: &Bytes) -> bool {
    // In pieces that a processor compares in a few steps: most pages end the search early.
    bytes.chunks_exact(64).all(|piece| piece == [0; 64])
}
