//! Swap: keeps the contents of pages that have no frame until an access needs them.
//!
//! ```text
//!                    zeroes?           nothing is stored
//! page ─▶ contents ─ compresses well?  memory: the pool, in frames of the arena ─┐ the oldest copies, when the pool is full
//!                    else              a device: one block, uncompressed ◀───────┘
//! ```
//! | file | contents |
//! |---|---|
//! | `entry` | the number of a copy in a page-table entry; references to copies, as values |
//! | `copy_table` | the table of copies: references and place of each |
//! | `pool` | compressed pages in frames: size classes |
//! | `device`, `swap_file` | blocks on any device, or in a file; their errors |
//! | `blocks` | free blocks of a device; the order in which devices are tried |
//! | `request`, `ring` | runs of blocks that are written or read at once, and who executes them |
//! | `store`, `load` | storing a batch of pages as copies, and loading it |
//! | `writing` | the part of a batch that goes to devices |
//! | `write_back` | moving copies from the pool to a device |
//! | `readahead` | which pages are read ahead of need |
//! | `settings`, `stats` | settings and statistics |
//! | `cache` | frames that equal a copy, for entries that share both |
//! | `kept_copies` | copies of pages that came back, so that an unwritten page need not be stored again |
//!
//! A copy never changes. It lives while it has references: from entries (forks share), and from threads that
//! read it. Each copy has a **checksum** of the page, kept apart from its contents. So a load returns what was
//! stored, or an error ([`MmError::SwapCorrupt`](crate::MmError::SwapCorrupt)), wherever bytes were damaged.
//!
//! **Guarantees**: a page that cannot be stored stays present, unchanged. A copy that cannot be read back fails
//! only the access that needs it, and may be read again. Copies without references take no room.
//!
//! The contents of a swap file are useless after a restart: a [`Swap`] truncates its file when it opens it and
//! when it is dropped. A file belongs to one `Swap` at a time.
//!
//! **Eviction tests whether swap is full by trying one batch**, not by a flag that a freed copy clears: a disk,
//! or the arena, can get room without notice. **An address space pays for its copies' shares of the pool's
//! frames.** An address space that swaps much therefore does not use up the limit of others. Unused parts of
//! the pool's frames are charged to no address space.

mod blocks;
mod cache;
mod copy_table;
mod device;
mod entry;
mod error;
mod kept_copies;
mod load;
mod pool;
mod port;
mod readahead;
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
pub use settings::SwapBuilder;
pub use stats::SwapStats;

pub(crate) use copy_table::Account;
pub(crate) use entry::{Shadow, SwapEntry};
pub(crate) use error::SwapError;
pub(crate) use kept_copies::KeptCopies;
pub(crate) use readahead::Readahead;

use crate::arena::Arena;
use copy_table::CopyTable;
use device::Bytes;
use parking_lot::Mutex;
use port::Port;
use slat::Pfn;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// A backing store for swapped pages. Give it to one or more [address
/// spaces](crate::AddressSpaceBuilder::swap).
#[derive(Debug)]
pub struct Swap {
    arena: Arc<Arena>,
    /// Whether it has a pool.
    memory: bool,
    /// One for each device, with the same numbers as in the table.
    ports: Vec<Port>,
    /// [`kept_copies`].
    keep_copies: bool,
    /// [`readahead`].
    pub(crate) read_ahead: u8,
    /// An innermost lock, not held during device I/O.
    table: Mutex<CopyTable>,
}

impl Swap {
    /// Returns the arena whose pages it stores.
    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Returns its contents and event counts.
    pub fn stats(&self) -> SwapStats {
        self.table.lock().stats()
    }

    /// Returns the bytes of the frames that hold compressed pages.
    pub fn pool_bytes(&self) -> u64 {
        self.stats().memory_bytes
    }

    /// Whether the next page is likely to find room. False if the last page found none and nothing was stored
    /// or freed since. An incompressible page may be refused anyway without a device, and any page while the
    /// arena has no frame for the pool. Eviction tries a batch in any case, since room may appear unnoticed, as
    /// on a disk.
    pub fn has_room(&self) -> bool {
        self.table.lock().has_room()
    }

    /// Returns the bytes of a page.
    fn bytes(&self, page: Pfn) -> NonNull<Bytes> {
        NonNull::new(self.arena.frame(page).cast()).unwrap_or(NonNull::dangling())
    }

    /// Whether batches of blocks go to the kernel by `io_uring`: a device is a file, and the kernel supports
    /// it. Otherwise threads read and write them.
    pub fn has_ring(&self) -> bool {
        self.ports.iter().any(Port::has_ring)
    }

    /// Counts a page that was read ahead, and is used now.
    pub(crate) fn used_ahead(&self) {
        self.table.lock().used_ahead();
    }

    /// Whether to keep the copy of a page that came back.
    pub(crate) fn keeps(&self, entry: SwapEntry) -> bool {
        self.keep_copies && self.table.lock().may_keep(entry)
    }

    /// Returns the device to read the copy from, if it must be read. The caller has a reference to it, or a
    /// lock that keeps one.
    pub(crate) fn device_of(&self, entry: SwapEntry) -> Option<u8> {
        let table = self.table.lock();
        match table.find(entry).0 {
            _ if table.rows[entry.0 as usize].frame.is_some() => None,
            copy_table::Place::Block(device, _) => Some(device),
            copy_table::Place::Zero | copy_table::Place::Memory(_) => None,
        }
    }

    /// Takes a reference, which the result drops.
    pub(crate) fn hold(&self, entry: SwapEntry) -> HeldCopy<'_> {
        self.table.lock().hold(entry);
        HeldCopy::new(self, entry)
    }

    /// Drops a reference. A copy without references is removed.
    pub(crate) fn put(&self, entry: SwapEntry) {
        self.table.lock().put(&self.arena, entry);
    }
}

impl Drop for Swap {
    /// Each address space holds its swap, so no copy has references any more.
    fn drop(&mut self) {
        let forgotten = self.table.get_mut().stats().references;
        debug_assert!(forgotten == 0 || std::thread::panicking(), "{forgotten} references were forgotten");
    }
}

/// A reference to a copy. Dropping it drops the reference.
#[derive(Debug)]
#[must_use]
pub(crate) struct HeldCopy<'a> {
    swap: &'a Swap,
    entry: SwapEntry,
}

impl<'a> HeldCopy<'a> {
    /// Takes over a reference that the caller has.
    pub(crate) fn new(swap: &'a Swap, entry: SwapEntry) -> Self {
        Self { swap, entry }
    }

    pub(crate) fn entry(&self) -> SwapEntry {
        self.entry
    }

    /// Returns the swap that holds the copy.
    pub(crate) fn swap(&self) -> &'a Swap {
        self.swap
    }

    /// Hands the reference over to a page-table entry, which drops it later.
    pub(crate) fn keep(self) -> SwapEntry {
        ManuallyDrop::new(self).entry
    }
}

impl Drop for HeldCopy<'_> {
    fn drop(&mut self) {
        self.swap.put(self.entry);
    }
}
