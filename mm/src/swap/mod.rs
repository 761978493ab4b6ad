//! Swap: what pages hold, kept where they need no frame of their own, until an access wants it back.
//!
//! ```text
//!                    zeroes?           no room of its own
//! page ─▶ contents ─ compresses well?  memory: the pool, in frames of the arena
//!                    else              file: one block, as it is
//! ```
//! | file | idea |
//! |---|---|
//! | `entry` | what an entry of a page table says of a copy; references to copies, as values |
//! | `books` | which copies there are, how often each is referred to, where it lies |
//! | `pool` | compressed pages in frames: size classes |
//! | `device` | blocks on a file or on anything else; what can go wrong there |
//! | `settings` | how swap is set up |
//! | `out`, `back` | a page's way out of an address space, and back in |
//! | `kept` | a page that was not written since goes again without being stored |
//! | `files` | a page's way out of a file, and back in |
//!
//! A copy never changes. It lives as long as it is referred to: by entries (forks share), and by a thread that reads it
//! meanwhile. With each goes a **checksum** of the page, kept here and not with the contents: what comes back is what
//! was stored, or an error ([`MmError::SwapCorrupt`](crate::MmError::SwapCorrupt)), wherever the bytes went astray.
//!
//! **What it promises**: a page that cannot be stored stays where it is, unharmed; a copy that cannot be read back harms
//! the access that wants it and nothing else, and may be asked for again; copies without a reference cost nothing.
//!
//! Contents in a file are of no use afterwards: the file is emptied when it is taken into use, which one
//! [`Swap`] does at a time, and when that is dropped.
//!
//! **Whether swap is full is asked by trying one batch**, not by a flag that a freed copy clears: a disk, or the arena, gets room
//! back without telling. **An address space pays for its copies' shares of the pool's frames**, so that one that swaps much does not
//! take the limit of the others; half-empty groups are charged to no space.

mod back;
mod books;
mod device;
mod entry;
mod error;
pub(crate) mod files;
mod kept;
mod out;
mod pool;
mod settings;
#[cfg(test)]
mod tests;

pub use books::SwapStats;
pub use device::SwapDevice;
pub use settings::{Sabotage, SwapBuilder};

pub(crate) use books::Account;
pub(crate) use entry::{Shadow, SwapEntry};
pub(crate) use error::SwapError;
pub(crate) use kept::Kept;
pub(crate) use out::{Leaving, SwappedOut};

use crate::arena::Arena;
use books::{Books, Place};
use device::{Bytes, PAGE};
use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};
use parking_lot::Mutex;
use rapidhash::v3::rapidhash_v3;
use slat::{PAGE_SIZE, Pfn};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// See the module's header. Give it to an [address space](crate::AddressSpaceBuilder::swap), or to several.
#[derive(Debug)]
pub struct Swap {
    arena: Arc<Arena>,
    /// Whether there is a pool.
    memory: bool,
    device: Option<Box<dyn SwapDevice>>,
    /// See [`kept`].
    keep_copies: bool,
    sabotage: Sabotage,
    /// A leaf lock; held for no reading or writing of the device.
    books: Mutex<Books>,
}

impl Swap {
    /// Starts building swap.
    pub fn builder() -> SwapBuilder {
        SwapBuilder::default()
    }

    /// The arena whose pages it stores.
    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// What it holds, and what it has done so far.
    pub fn stats(&self) -> SwapStats {
        self.books.lock().stats()
    }

    /// Bytes of the frames that compressed pages lie in.
    pub fn pool_bytes(&self) -> u64 {
        self.stats().memory_bytes
    }

    /// Whether it looks as if a page would find room; false when the last one did not and nothing was stored or freed since.
    /// Pages that do not compress may be refused all the same where there is no file, and any page for as long as the arena has
    /// no frame for the pool. Eviction tries a batch of pages whatever this says: room may come back unnoticed, as on a disk.
    pub fn has_room(&self) -> bool {
        self.books.lock().has_room()
    }

    /// Stores what the page holds, and charges what that takes of the pool to `owner`. No thread may write to the page meanwhile.
    /// May sleep.
    pub(crate) fn store(&self, page: Pfn, owner: &Arc<Account>) -> Result<HeldCopy<'_>, SwapError> {
        // SAFETY: a frame of this arena, to which the caller has a right and no thread writes.
        let bytes: &Bytes = unsafe { &*self.arena.frame(page).cast() };
        let result = if seeded!(FullBelieved) && !self.has_room() {
            Err(SwapError::Full)
        } else {
            self.store_bytes(bytes, owner)
        };
        if let Err(error) = result {
            self.books.lock().failed_to_store(error);
        }
        result
    }

    fn store_bytes(&self, bytes: &Bytes, owner: &Arc<Account>) -> Result<HeldCopy<'_>, SwapError> {
        if is_zero(bytes) {
            return Ok(HeldCopy::new(self, self.books.lock().add_zero()));
        }
        let sum = rapidhash_v3(bytes);
        let entry = match self.store_in_memory(bytes, sum, owner) {
            Ok(entry) => entry,
            Err(refused) => match &self.device {
                None => return Err(refused),
                Some(device) => self.store_on(&**device, bytes, sum, owner)?,
            },
        };
        Ok(HeldCopy::new(self, entry))
    }

    fn store_in_memory(&self, bytes: &Bytes, sum: u64, owner: &Arc<Account>) -> Result<SwapEntry, SwapError> {
        if !self.memory {
            return Err(SwapError::Full);
        }
        let mut buffer = [0; get_maximum_output_size(PAGE)];
        // It has room for whatever comes.
        let len = compress_into(bytes, &mut buffer).map_err(|_| SwapError::Incompressible)?;
        if len > pool::LARGEST {
            return Err(SwapError::Incompressible);
        }
        let mut books = self.books.lock();
        let slot = books.pool.insert(&self.arena, len)?;
        // Under the lock, though no other thread knows the slot yet: it is a short copy.
        books.pool.extent(slot).write(&self.arena, &buffer[..len]);
        books.add(&self.arena, Place::Memory(slot), sum, owner)
    }

    fn store_on(
        &self,
        device: &dyn SwapDevice,
        bytes: &Bytes,
        sum: u64,
        owner: &Arc<Account>,
    ) -> Result<SwapEntry, SwapError> {
        let block = self.books.lock().blocks.take().ok_or(SwapError::Full)?;
        let written = device::write(device, bytes, u64::from(block) * PAGE_SIZE);
        let mut books = self.books.lock();
        if let Err(failed) = written {
            books.blocks.give(block);
            return Err(failed.into());
        }
        books.add(&self.arena, Place::Block(block), sum, owner)
    }

    /// Makes page `into`, which is the caller's alone, hold what was stored. On an error it holds anything. May sleep.
    pub(crate) fn load(&self, copy: &HeldCopy<'_>, into: Pfn) -> Result<(), SwapError> {
        // SAFETY: a frame of this arena that is the caller's alone.
        let bytes: &mut Bytes = unsafe { &mut *self.arena.frame(into).cast() };
        let result = self.load_bytes(copy.entry(), bytes);
        self.books.lock().loaded(result.is_ok());
        result
    }

    fn load_bytes(&self, entry: SwapEntry, bytes: &mut Bytes) -> Result<(), SwapError> {
        // The caller's reference keeps all of this as it is while the lock is free.
        let books = self.books.lock();
        let (place, sum) = books.find(entry);
        match place {
            Place::Zero => {
                drop(books);
                bytes.fill(0);
                return Ok(());
            }
            Place::Memory(slot) => {
                let extent = books.pool.extent(slot);
                drop(books);
                let mut buffer = [0; pool::LARGEST];
                let compressed = extent.read(&self.arena, &mut buffer);
                if !decompress_into(compressed, bytes).is_ok_and(|len| len == PAGE) {
                    return Err(SwapError::Corrupt);
                }
            }
            Place::Block(block) => {
                drop(books);
                let device = self.device.as_deref().ok_or(SwapError::Corrupt)?;
                device::read(device, bytes, u64::from(block) * PAGE_SIZE)?;
            }
        }
        if rapidhash_v3(bytes) == sum { Ok(()) } else { Err(SwapError::Corrupt) }
    }

    /// Whether the copy is kept of a page that came back.
    fn keeps(&self, entry: SwapEntry) -> bool {
        self.keep_copies && self.books.lock().may_keep(entry)
    }

    /// Whether to look at entries again when the device is done: always, but in a negative control.
    fn looks_again(&self) -> bool {
        self.sabotage != Sabotage::LookAgain
    }

    /// One reference more, which is given back when it is dropped.
    pub(crate) fn hold(&self, entry: SwapEntry) -> HeldCopy<'_> {
        self.books.lock().hold(entry);
        HeldCopy::new(self, entry)
    }

    /// One reference less. What has no reference left is gone.
    pub(crate) fn put(&self, entry: SwapEntry) {
        self.books.lock().put(&self.arena, entry);
    }
}

impl Drop for Swap {
    /// Address spaces hold their swap, so no copy is referred to any more.
    fn drop(&mut self) {
        let forgotten = self.books.get_mut().stats().references;
        debug_assert!(forgotten == 0 || std::thread::panicking(), "{forgotten} references were forgotten");
    }
}

fn is_zero(bytes: &Bytes) -> bool {
    // In pieces that a processor compares in a few steps: most pages end the search at once.
    bytes.chunks_exact(64).all(|piece| piece == [0; 64])
}

/// A reference to a copy. Dropping it gives it back.
#[derive(Debug)]
#[must_use]
pub(crate) struct HeldCopy<'a> {
    swap: &'a Swap,
    entry: SwapEntry,
}

impl<'a> HeldCopy<'a> {
    /// The caller hands over a reference that it has.
    fn new(swap: &'a Swap, entry: SwapEntry) -> Self {
        Self { swap, entry }
    }

    pub(crate) fn entry(&self) -> SwapEntry {
        self.entry
    }

    /// Where it lies.
    pub(crate) fn swap(&self) -> &'a Swap {
        self.swap
    }

    /// The reference lives on in an entry of a page table, which gives it back some day.
    pub(crate) fn keep(self) -> SwapEntry {
        ManuallyDrop::new(self).entry
    }
}

impl Drop for HeldCopy<'_> {
    fn drop(&mut self) {
        self.swap.put(self.entry);
    }
}
