//! The table of copies: references and place of each.
//!
//! A copy in the pool may [move](super::write_back) to a device. A thread that reads it in the pool registers
//! as a reader first; a copy with readers does not move.

use super::blocks::{DeviceState, order};
use super::entry::SwapEntry;
use super::error::SwapError;
use super::pool::{Extent, Pool, Slot};
use super::stats::SwapStats;
use crate::arena::Arena;
use crate::ledger::Owner;
use slat::{PAGE_SIZE, Pfn};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of pool frames that an address space's copies take; it, or its group, pays for them.
#[derive(Debug, Default)]
pub(crate) struct Account {
    bytes: AtomicU64,
    group: Owner,
}

impl Account {
    pub(crate) fn new(group: Owner) -> Self {
        Self { bytes: AtomicU64::new(0), group }
    }

    /// Adds bytes and copies; both may be negative.
    fn add(&self, arena: &Arena, bytes: i64, copies: i64) {
        self.bytes.fetch_add(bytes as u64, Relaxed);
        if let Some(ledger) = arena.ledgers().get(self.group) {
            ledger.stored.fetch_add(bytes, Relaxed);
            ledger.copies.fetch_add(copies, Relaxed);
        }
    }

    /// ORDER(account): Relaxed, here and in `CopyTable`: a number that is compared with a limit.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// The copies of a swap, and the free room.
#[derive(Debug)]
pub(super) struct CopyTable {
    pub(super) rows: Vec<Row>,
    /// Free rows.
    free: Vec<SwapEntry>,
    /// Copies that went to the pool, oldest first, with their serial numbers then. Some have been freed or
    /// moved since.
    oldest: VecDeque<(SwapEntry, u64)>,
    pub(super) pool: Pool,
    /// One for each device.
    pub(super) device_states: Vec<DeviceState>,
    /// Number of batches planned.
    batches: u64,
    /// The swap cache: frames, and the copies that equal them.
    pub(super) cached: BTreeMap<Pfn, SwapEntry>,
    done: SwapStats,
    /// The last page found no room, and nothing was stored or freed since. A hint: eviction tries anyway.
    full: bool,
}

/// One copy.
#[derive(Debug)]
pub(super) struct Row {
    /// Number of references; not counted for the zero page.
    pub(super) references: u32,
    place: Place,
    /// Checksum of the page.
    sum: u64,
    /// The address space that stored it. It pays for the pool's memory, even while only its forks refer to the
    /// copy.
    owner: Option<Arc<Account>>,
    /// Number of threads that read it in place.
    readers: u32,
    /// Unique to this copy, since entries are reused.
    serial: u64,
    /// Its frame in the [swap cache](super::cache).
    pub(super) frame: Option<Pfn>,
}

/// A copy that is to move from the pool to a device.
#[derive(Debug)]
pub(super) struct Mover {
    /// The caller has a reference to it.
    pub(super) entry: SwapEntry,
    pub(super) extent: Extent,
    pub(super) sum: u64,
    serial: u64,
}

/// Where a copy lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Nowhere: a page of zeroes.
    Zero,
    /// In the pool.
    Memory(Slot),
    /// In a block of a device, by their numbers.
    Block(u8, u32),
}

impl CopyTable {
    pub(super) fn new(pool: Pool, device_states: Vec<DeviceState>) -> Self {
        let zero = Row {
            references: 0,
            place: Place::Zero,
            sum: 0,
            owner: None,
            readers: 0,
            serial: 0,
            frame: None,
        };
        Self {
            rows: vec![zero],
            free: Vec::new(),
            oldest: VecDeque::new(),
            pool,
            device_states,
            batches: 0,
            cached: BTreeMap::new(),
            done: SwapStats::default(),
            full: false,
        }
    }

    /// Adds a copy with one reference. If no number is free, frees its place.
    pub(super) fn add(
        &mut self,
        arena: &Arena,
        place: Place,
        sum: u64,
        owner: &Arc<Account>,
    ) -> Result<SwapEntry, SwapError> {
        let serial = self.done.stored + 1;
        let row =
            Row { references: 1, place, sum, owner: Some(owner.clone()), readers: 0, serial, frame: None };
        owner.add(arena, self.price(place) as i64, 1);
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
                owner.add(arena, 0, -1);
                return Err(SwapError::Full);
            }
        };
        if let Place::Memory(_) = place {
            self.age(entry, serial);
        }
        self.done.stored += 1;
        self.done.references += 1;
        self.full = false;
        Ok(entry)
    }

    /// Makes a copy in the pool the youngest.
    fn age(&mut self, entry: SwapEntry, serial: u64) {
        if self.oldest.len() >= 2 * self.rows.len() {
            let rows = &self.rows;
            self.oldest.retain(|&(entry, serial)| rows[entry.0 as usize].serial == serial);
        }
        self.oldest.push_back((entry, serial));
    }

    /// Adds a reference to the zero page.
    pub(super) fn add_zero(&mut self) -> SwapEntry {
        self.done.stored += 1;
        self.done.zero += 1;
        self.hold(SwapEntry::ZERO);
        SwapEntry::ZERO
    }

    /// Returns the copy's place and checksum. The caller has a reference to it.
    pub(super) fn find(&self, entry: SwapEntry) -> (Place, u64) {
        let row = &self.rows[entry.0 as usize];
        (row.place, row.sum)
    }

    /// Returns the same, and keeps the copy there until [`loaded`](Self::loaded).
    pub(super) fn find_to_read(&mut self, entry: SwapEntry) -> (Place, u64) {
        self.rows[entry.0 as usize].readers += 1;
        self.find(entry)
    }

    /// Returns the oldest copies in the pool, at most `most`; only those of `owner` if given. Each gets a
    /// reference.
    pub(super) fn choose_movers(&mut self, most: usize, owner: Option<&Account>) -> Vec<Mover> {
        let mut movers = Vec::new();
        let mut passed = Vec::new();
        while movers.len() < most
            && let Some((entry, serial)) = self.oldest.pop_front()
        {
            let row = &self.rows[entry.0 as usize];
            let Place::Memory(slot) = row.place else { continue };
            if row.serial != serial {
                continue;
            }
            if owner.is_some_and(|owner| !row.owner.as_ref().is_some_and(|is| is.is(owner))) {
                passed.push((entry, serial));
                continue;
            }
            movers.push(Mover { entry, extent: self.pool.extent(slot), sum: row.sum, serial });
            self.hold(entry);
        }
        for passed in passed.into_iter().rev() {
            self.oldest.push_front(passed);
        }
        movers
    }

    /// Finishes a move: sets the copy's new place if it was stored there. The copy stays if a thread is reading
    /// it, or only the caller refers to it. Drops the caller's reference.
    pub(super) fn moved(&mut self, arena: &Arena, mover: &Mover, to: Result<Place, SwapError>) -> bool {
        let row = &mut self.rows[mover.entry.0 as usize];
        let moves = row.references > 1 && row.readers == 0;
        let moved = match to {
            Ok(place) if moves => {
                let (from, owner) = (std::mem::replace(&mut row.place, place), row.owner.clone());
                self.vacate(arena, from, owner.as_ref());
                self.done.written_back += 1;
                true
            }
            Ok(place) => {
                self.vacate(arena, place, None);
                false
            }
            Err(_) => false,
        };
        if !moved {
            self.oldest.push_front((mover.entry, mover.serial));
        }
        self.put(arena, mover.entry);
        moved
    }

    /// Plans where up to `want` pages go, device after device, without those in the mask `closed`. A failing
    /// device gets one page.
    pub(super) fn plan(&mut self, mut want: usize, closed: u64) -> Vec<(u8, Vec<u32>)> {
        self.batches += 1;
        let mut plan = Vec::new();
        let mut first = true;
        for at in order(&self.device_states, self.batches) {
            let room = &mut self.device_states[at];
            // A failing device is tried when it comes first: it is being probed, or no working device has room.
            if want == 0 || closed >> at & 1 != 0 || room.is_failing && !first {
                continue;
            }
            let blocks = room.blocks.take(if room.is_failing { 1 } else { want });
            first &= blocks.is_empty();
            want -= blocks.len();
            if !blocks.is_empty() {
                plan.push((at as u8, blocks));
            }
        }
        plan
    }

    /// Records the result of storing a page on a device; frees its block on failure.
    pub(super) fn tried(&mut self, device: u8, block: u32, ok: bool) {
        let room = &mut self.device_states[usize::from(device)];
        room.is_failing = !ok;
        if !ok {
            room.blocks.give(block);
        }
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
            self.uncache(arena, entry);
            let row = &mut self.rows[entry.0 as usize];
            let (place, owner) = (row.place, row.owner.take());
            row.serial = 0;
            self.vacate(arena, place, owner.as_ref());
            if let Some(owner) = owner {
                owner.add(arena, 0, -1);
            }
            self.free.push(entry);
        }
    }

    /// Returns the bytes of pool frames that a copy takes.
    fn price(&self, place: Place) -> u64 {
        match place {
            Place::Memory(slot) => self.pool.share(slot),
            Place::Zero | Place::Block(..) => 0,
        }
    }

    fn vacate(&mut self, arena: &Arena, place: Place, owner: Option<&Arc<Account>>) {
        if let Some(owner) = owner {
            owner.add(arena, -(self.price(place) as i64), 0);
        }
        match place {
            Place::Zero => {}
            Place::Memory(slot) => self.pool.remove(arena, slot),
            Place::Block(device, block) => {
                let room = &mut self.device_states[usize::from(device)];
                room.blocks.give(block);
            }
        }
        self.full = false;
    }

    /// Records the result of reading a copy, `ahead` of need or for an access.
    pub(super) fn loaded(&mut self, entry: SwapEntry, ok: bool, ahead: bool) {
        self.rows[entry.0 as usize].readers -= 1;
        self.done.loaded += u64::from(ok);
        self.done.read_ahead += u64::from(ok && ahead);
        self.done.load_errors += u64::from(!ok && !ahead);
    }

    /// Counts the use of a page that was read ahead.
    pub(super) fn used_ahead(&mut self) {
        self.done.read_ahead_used += 1;
    }

    /// Frees the place of a page that is no longer needed.
    pub(super) fn forget(&mut self, arena: &Arena, place: Place) {
        self.vacate(arena, place, None);
    }

    pub(super) fn failed_to_store(&mut self, error: SwapError) {
        match error {
            SwapError::Full => {
                self.full = true;
                self.done.refused += 1;
            }
            SwapError::NoFrame | SwapError::Incompressible | SwapError::NoSwap => self.done.refused += 1,
            SwapError::Io { .. } | SwapError::Corrupt => self.done.store_errors += 1,
        }
    }

    /// Records that a page of a batch found no room.
    pub(super) fn found_full(&mut self) {
        self.full = true;
    }

    /// Whether to keep the copy although its page came back.
    pub(super) fn may_keep(&self, entry: SwapEntry) -> bool {
        match self.find(entry).0 {
            // A cached copy is shared with other entries.
            _ if self.rows[entry.0 as usize].frame.is_some() => false,
            Place::Block(device, _) => {
                self.device_states[usize::from(device)].blocks.are_half_free() && !self.full
            }
            Place::Zero | Place::Memory(_) => false,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        !self.full
    }

    pub(super) fn stats(&self) -> SwapStats {
        SwapStats {
            compressed_bytes: self.pool.bytes(),
            memory_bytes: self.pool.frames() * PAGE_SIZE,
            cached: self.cached.len() as u64,
            file_bytes: self.device_states.iter().map(|room| room.blocks.in_use()).sum::<u64>() * PAGE_SIZE,
            ..self.done
        }
    }
}
