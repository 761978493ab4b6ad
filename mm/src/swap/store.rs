//! A batch of pages on its way to copies.
//!
//! What compresses goes to the pool at once. The rest is begun with the devices, and waited for by [`Storing::wait`]. Where the pool
//! is full its oldest copies move to a device meanwhile: the next batch finds room there.

use super::books::Account;
use super::device::{Bytes, PAGE};
use super::entry::SwapEntry;
use super::error::SwapError;
use super::write_back::WriteBack;
use super::writing::Writing;
use super::{HeldCopy, Swap, pool};
use crate::swap::books::Place;
use lz4_flex::block::{compress_into, get_maximum_output_size};
use rapidhash::v3::rapidhash_v3;
use slat::Pfn;
use std::sync::Arc;

/// See the module's header. Dropping it waits, and lets go of what was stored.
#[derive(Debug)]
#[must_use]
pub(crate) struct Storing<'a> {
    swap: &'a Swap,
    owner: Arc<Account>,
    /// In the order of the pages. `None`: it is on its way to a device.
    copies: Vec<Option<Result<HeldCopy<'a>, SwapError>>>,
    /// Those that are, and their sums.
    on_their_way: Vec<(Pfn, u64)>,
    writing: Option<Writing<'a>>,
    moving: Option<WriteBack<'a>>,
}

impl Swap {
    /// Begins to store what the pages hold, and charges what that takes of the pool to `owner`. Until it is over no thread may write
    /// to the pages, and they may not go. May sleep.
    pub(crate) fn store(&self, pages: &[Pfn], owner: &Arc<Account>) -> Storing<'_> {
        let believed = seeded!(FullBelieved) && !self.has_room();
        let (mut copies, mut on_their_way) = (Vec::new(), Vec::new());
        let mut moving = None;
        for &page in pages {
            // SAFETY: a frame of this arena, to which the caller has a right and no thread writes.
            let bytes: &Bytes = unsafe { self.bytes(page).as_ref() };
            let copy = if believed { Err(SwapError::Full) } else { self.store_at_once(bytes, owner) };
            match copy {
                Err(error) if !believed && !self.ports.is_empty() => {
                    if error == SwapError::Full && self.memory && moving.is_none() {
                        moving = Some(self.begin_write_back(pages.len(), None));
                    }
                    copies.push(None);
                    on_their_way.push((page, rapidhash_v3(bytes)));
                }
                copy => {
                    if let Err(error) = copy {
                        self.books.lock().failed_to_store(error);
                    }
                    copies.push(Some(copy));
                }
            }
        }
        let asked = on_their_way.iter().map(|&(page, _)| self.bytes(page));
        // SAFETY: the caller's word; `Storing` waits.
        let writing = (!on_their_way.is_empty()).then(|| unsafe { Writing::begin(self, asked) });
        Storing { swap: self, owner: owner.clone(), copies, on_their_way, writing, moving }
    }

    /// The copy of a page that needs no device.
    fn store_at_once(&self, bytes: &Bytes, owner: &Arc<Account>) -> Result<HeldCopy<'_>, SwapError> {
        if is_zero(bytes) {
            return Ok(HeldCopy::new(self, self.books.lock().add_zero()));
        }
        if !self.memory {
            return Err(SwapError::Full);
        }
        self.store_in_memory(bytes, owner).map(|entry| HeldCopy::new(self, entry))
    }

    fn store_in_memory(&self, bytes: &Bytes, owner: &Arc<Account>) -> Result<SwapEntry, SwapError> {
        let mut buffer = [0; get_maximum_output_size(PAGE)];
        // It has room for whatever comes.
        let len = compress_into(bytes, &mut buffer).map_err(|_| SwapError::Incompressible)?;
        if len > pool::LARGEST {
            return Err(SwapError::Incompressible);
        }
        let sum = rapidhash_v3(bytes);
        let mut books = self.books.lock();
        let slot = books.pool.insert(&self.arena, len)?;
        // Under the lock, though no other thread knows the slot yet: it is a short copy.
        books.pool.extent(slot).write(&self.arena, &buffer[..len]);
        books.add(&self.arena, Place::Memory(slot), sum, owner)
    }
}

impl<'a> Storing<'a> {
    /// The copies, in the order of the pages. May sleep.
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
                // SAFETY: the word given to `store`.
                return self.swap.store_at_once(unsafe { self.swap.bytes(page).as_ref() }, &self.owner);
            }
            let entry = self.swap.books.lock().add(&self.swap.arena, place?, sum, &self.owner)?;
            Ok(HeldCopy::new(self.swap, entry))
        };
        let copies: Vec<_> = std::mem::take(&mut self.copies).into_iter().map(&mut copy).collect();
        if copies.iter().any(|copy| matches!(copy, Err(SwapError::Full))) {
            self.swap.books.lock().found_full();
        }
        copies
    }
}

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        for place in self.writing.take().map_or_else(Vec::new, Writing::wait).into_iter().flatten() {
            self.swap.books.lock().forget(&self.swap.arena, place);
        }
    }
}

fn is_zero(bytes: &Bytes) -> bool {
    // In pieces that a processor compares in a few steps: most pages end the search at once.
    bytes.chunks_exact(64).all(|piece| piece == [0; 64])
}
