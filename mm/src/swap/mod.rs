//! Swap: what pages hold, kept where they need no frame of their own, until an access wants it back.
//!
//! ```text
//!                    zeroes?           no room of its own
//! page ─▶ contents ─ compresses well?  memory: the pool, in frames of the arena ─┐ the oldest, where the pool is full
//!                    else              a device: one block, as it is ◀───────────┘
//! ```
//! | file | idea |
//! |---|---|
//! | `entry` | what an entry of a page table says of a copy; references to copies, as values |
//! | `books` | which copies there are, how often each is referred to, where it lies |
//! | `pool` | compressed pages in frames: size classes |
//! | `device`, `swap_file` | blocks on anything, or on a file; what can go wrong there |
//! | `blocks` | which blocks of a device are free; which of several devices is asked first |
//! | `request`, `ring` | runs of blocks that are written or read at once, and what carries that out |
//! | `store`, `load` | a batch of pages on its way to copies, and back |
//! | `writing` | those of them that go to devices |
//! | `write_back` | copies move from the pool to a device |
//! | `ahead` | which pages are read ahead of need |
//! | `settings`, `stats` | how swap is set up, and what it tells of itself |
//! | `out`, `back` | a page's way out of an address space, and back in |
//! | `cache` | frames that hold what a copy holds, for entries that share both |
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

mod ahead;
mod back;
mod blocks;
mod books;
mod cache;
mod device;
mod entry;
mod error;
pub(crate) mod files;
mod kept;
mod load;
mod neighbours;
mod out;
mod pool;
mod port;
#[cfg_attr(not(feature = "io-uring"), allow(dead_code, reason = "a ring alone asks for it"))]
mod request;
#[cfg_attr(not(feature = "io-uring"), path = "no_ring.rs")]
mod ring;
mod settings;
mod stats;
mod store;
mod swap_file;
#[cfg(test)]
mod tests;
mod write_back;
mod writing;

pub use device::SwapDevice;
pub use settings::{Sabotage, SwapBuilder};
pub use stats::SwapStats;

pub(crate) use ahead::Ahead;
pub(crate) use books::Account;
pub(crate) use entry::{Shadow, SwapEntry};
pub(crate) use error::SwapError;
pub(crate) use kept::Kept;
pub(crate) use out::{Leaving, SwappedOut};

use crate::arena::Arena;
use books::Books;
use device::Bytes;
use parking_lot::Mutex;
use port::Port;
use slat::Pfn;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// See the module's header. Give it to an [address space](crate::AddressSpaceBuilder::swap), or to several.
#[derive(Debug)]
pub struct Swap {
    arena: Arc<Arena>,
    /// Whether there is a pool.
    memory: bool,
    /// One for each device, numbered as in the books.
    ports: Vec<Port>,
    /// See [`kept`].
    keep_copies: bool,
    /// See [`ahead`].
    read_ahead: u8,
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

    /// Where the page lies.
    fn bytes(&self, page: Pfn) -> NonNull<Bytes> {
        NonNull::new(self.arena.frame(page).cast()).unwrap_or(NonNull::dangling())
    }

    /// Whether the kernel is asked for many blocks at once, by `io_uring`: where a device is a file, and the kernel lets itself be
    /// asked. Else threads ask for them.
    pub fn has_ring(&self) -> bool {
        self.ports.iter().any(Port::has_ring)
    }

    /// Whether the copy is kept of a page that came back.
    fn keeps(&self, entry: SwapEntry) -> bool {
        self.keep_copies && self.books.lock().may_keep(entry)
    }

    /// The device that the copy lies on, if it has to be read from one. The caller has a reference to it, or a lock that keeps one.
    fn device_of(&self, entry: SwapEntry) -> Option<u8> {
        let books = self.books.lock();
        match books.find(entry).0 {
            _ if books.rows[entry.0 as usize].frame.is_some() => None,
            books::Place::Block(device, _) => Some(device),
            books::Place::Zero | books::Place::Memory(_) => None,
        }
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
