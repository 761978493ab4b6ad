//! Stores during dirty logs: a thread that stores notes the number of the log that is on. A log that is on must have
//! marked every page noted under its number.

use crate::slot_places::{SIZE, SLOTS};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

struct Log {
    /// The number of the log that is on; zero for none.
    on: AtomicU64,
    /// By page: the last log number under which a store was noted.
    written: Vec<AtomicU64>,
}

/// The logs of every slot.
pub struct Logs {
    slots: Vec<Log>,
    /// The last number.
    number: AtomicU64,
    /// Pages, with their slots, that were taken from the rings of vCPUs.
    from_rings: Mutex<BTreeSet<(u64, u64)>>,
}

impl Logs {
    pub fn new() -> Self {
        let written = || (0..SIZE).map(|_| AtomicU64::new(0)).collect();
        let log = |_| Log { on: AtomicU64::new(0), written: written() };
        Self { slots: (0..SLOTS).map(log).collect(), number: AtomicU64::new(0), from_rings: Mutex::default() }
    }

    /// Called when the transaction that begins a slot's log is over. Returns the log's number.
    pub fn begin(&self, slot: u64) -> u64 {
        let number = self.number.fetch_add(1, SeqCst) + 1;
        self.slots[slot as usize].on.store(number, SeqCst);
        number
    }

    /// Called when the transaction that ends a slot's log is about to begin.
    pub fn end(&self, slot: u64) {
        self.slots[slot as usize].on.store(0, SeqCst);
    }

    /// Notes a store to a page of a slot, by a vCPU that has not answered since.
    pub fn store(&self, part: (u64, u64)) {
        self.note(part, self.on(part));
    }

    /// Returns the number of the log that is on for a page of a slot, zero for none.
    pub fn on(&self, (slot, _): (u64, u64)) -> u64 {
        self.slots[slot as usize].on.load(SeqCst)
    }

    /// Notes a store that was made while log `number` was on, after it was marked.
    pub fn note(&self, (slot, page): (u64, u64), number: u64) {
        if number != 0 {
            self.slots[slot as usize].written[page as usize].fetch_max(number, SeqCst);
        }
    }

    /// Takes pages out of rings. A page is in a ring, or among those taken for the next check.
    pub fn take_from_rings<R>(&self, take: impl FnOnce(&mut BTreeSet<(u64, u64)>) -> R) -> R {
        take(&mut self.from_rings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the pages of `slot` noted under `number`.
    pub fn noted(&self, slot: u64, number: u64) -> Vec<u64> {
        let pages = self.slots[slot as usize].written.iter().zip(0..);
        pages.filter(|(written, _)| written.load(SeqCst) == number).map(|(_, page)| page).collect()
    }
}
