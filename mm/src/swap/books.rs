//! The books of swap: which copies there are, how often each is referred to, and where it lies.

use super::entry::SwapEntry;
use super::error::SwapError;
use super::pool::{Pool, Slot};
use crate::arena::Arena;
use slat::PAGE_SIZE;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What swap holds, and what it has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapStats {
    /// Pages that were stored.
    pub stored: u64,
    /// Of these, pages of zeroes.
    pub zero: u64,
    /// Pages that were read back; some of them more than once.
    pub loaded: u64,
    /// Pages that were refused: no room.
    pub refused: u64,
    /// Pages that the device failed to store.
    pub store_errors: u64,
    /// Pages that could not be read back, or not as they were.
    pub load_errors: u64,
    /// References to copies that there are now: by entries that are swapped out, by files, and those that are
    /// [kept](super::SwapBuilder::keep_copies).
    pub references: u64,
    /// Bytes of compressed pages in memory now.
    pub compressed_bytes: u64,
    /// Bytes of the frames that they lie in.
    pub memory_bytes: u64,
    /// Bytes of blocks in use on the device now.
    pub file_bytes: u64,
}

/// Bytes of pools' frames that an address space's copies take: what it pays for.
#[derive(Debug, Default)]
pub(crate) struct Account(AtomicU64);

impl Account {
    /// ORDER(account): Relaxed, here and in `Books`: a number that is compared with a limit.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Books {
    rows: Vec<Row>,
    /// Rows that are free.
    free: Vec<SwapEntry>,
    pub(super) pool: Pool,
    pub(super) blocks: Blocks,
    done: SwapStats,
    /// The last page that was to be stored found no room, and nothing was stored or freed since. A hint: eviction asks again.
    full: bool,
}

/// One copy.
#[derive(Debug)]
struct Row {
    /// Not counted for the page of zeroes, of which there is one.
    references: u32,
    place: Place,
    /// Of the page as it was.
    sum: u64,
    /// Of the address space that stored it: it pays for the pool's memory, also for as long as only its forks refer to the copy.
    owner: Option<Arc<Account>>,
}

/// Where a copy lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Nowhere: it is zeroes.
    Zero,
    /// In the pool.
    Memory(Slot),
    /// In this block of the device.
    Block(u32),
}

/// Which blocks of a device are free: those given back, and all from `next` on.
#[derive(Debug)]
pub(super) struct Blocks {
    next: u32,
    limit: u32,
    free: Vec<u32>,
}

impl Blocks {
    pub(super) fn new(limit: u32) -> Self {
        Self { next: 0, limit, free: Vec::new() }
    }

    /// One that was used before if there is one: a file that cannot grow still has room there.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let fresh = (self.next < self.limit).then_some(self.next)?;
            self.next += 1;
            Some(fresh)
        })
    }

    pub(super) fn give(&mut self, block: u32) {
        self.free.push(block);
    }

    fn are_half_free(&self) -> bool {
        self.in_use() < u64::from(self.limit / 2)
    }

    fn in_use(&self) -> u64 {
        u64::from(self.next) - self.free.len() as u64
    }
}

impl Books {
    pub(super) fn new(pool: Pool, blocks: Blocks) -> Self {
        let zero = Row { references: 0, place: Place::Zero, sum: 0, owner: None };
        let done = SwapStats::default();
        Self { rows: vec![zero], free: Vec::new(), pool, blocks, done, full: false }
    }

    /// A new copy, with one reference. Where there are as many as have numbers, its place is free again.
    pub(super) fn add(
        &mut self,
        arena: &Arena,
        place: Place,
        sum: u64,
        owner: &Arc<Account>,
    ) -> Result<SwapEntry, SwapError> {
        let row = Row { references: 1, place, sum, owner: Some(owner.clone()) };
        owner.0.fetch_add(self.price(place), Relaxed);
        let entry = match (self.free.pop(), u32::try_from(self.rows.len())) {
            (Some(entry), _) => {
                self.rows[entry.0 as usize] = row;
                entry
            }
            (None, Ok(number)) => {
                self.rows.push(row);
                SwapEntry(number)
            }
            (None, Err(_)) => {
                self.vacate(arena, place, Some(owner));
                return Err(SwapError::Full);
            }
        };
        self.done.stored += 1;
        self.done.references += 1;
        self.full = false;
        Ok(entry)
    }

    /// A reference more to the page of zeroes.
    pub(super) fn add_zero(&mut self) -> SwapEntry {
        self.done.stored += 1;
        self.done.zero += 1;
        self.hold(SwapEntry::ZERO);
        SwapEntry::ZERO
    }

    /// Where the copy lies, and its sum. The caller has a reference to it.
    pub(super) fn find(&self, entry: SwapEntry) -> (Place, u64) {
        let row = &self.rows[entry.0 as usize];
        (row.place, row.sum)
    }

    pub(super) fn hold(&mut self, entry: SwapEntry) {
        self.done.references += 1;
        if entry != SwapEntry::ZERO {
            self.rows[entry.0 as usize].references += 1;
        }
    }

    pub(super) fn put(&mut self, arena: &Arena, entry: SwapEntry) {
        self.done.references -= 1;
        if entry == SwapEntry::ZERO {
            return;
        }
        let row = &mut self.rows[entry.0 as usize];
        debug_assert!(row.references > 0, "{entry:?} is free already");
        row.references -= 1;
        if row.references == 0 {
            let (place, owner) = (row.place, row.owner.take());
            self.vacate(arena, place, owner.as_ref());
            self.free.push(entry);
        }
    }

    /// Bytes of the pool's frames that a copy takes.
    fn price(&self, place: Place) -> u64 {
        match place {
            Place::Memory(slot) => self.pool.share(slot),
            Place::Zero | Place::Block(_) => 0,
        }
    }

    fn vacate(&mut self, arena: &Arena, place: Place, owner: Option<&Arc<Account>>) {
        if let Some(owner) = owner {
            owner.0.fetch_sub(self.price(place), Relaxed);
        }
        match place {
            Place::Zero => {}
            Place::Memory(slot) => self.pool.remove(arena, slot),
            Place::Block(block) => self.blocks.give(block),
        }
        self.full = false;
    }

    /// A thread has read a copy, or tried to.
    pub(super) fn loaded(&mut self, ok: bool) {
        *(if ok { &mut self.done.loaded } else { &mut self.done.load_errors }) += 1;
    }

    pub(super) fn failed_to_store(&mut self, error: SwapError) {
        match error {
            SwapError::NoFrame if !seeded!(NoFrameIsFull) => self.done.refused += 1,
            SwapError::Full | SwapError::NoFrame => {
                self.full = true;
                self.done.refused += 1;
            }
            SwapError::Incompressible | SwapError::NoSwap => self.done.refused += 1,
            SwapError::Io { .. } | SwapError::Corrupt => self.done.store_errors += 1,
        }
    }

    /// Whether the copy may stay although its page came back.
    pub(super) fn may_keep(&self, entry: SwapEntry) -> bool {
        matches!(self.find(entry).0, Place::Block(_)) && self.blocks.are_half_free() && !self.full
    }

    pub(super) fn has_room(&self) -> bool {
        !self.full
    }

    pub(super) fn stats(&self) -> SwapStats {
        SwapStats {
            compressed_bytes: self.pool.bytes(),
            memory_bytes: self.pool.frames() * PAGE_SIZE,
            file_bytes: self.blocks.in_use() * PAGE_SIZE,
            ..self.done
        }
    }
}
