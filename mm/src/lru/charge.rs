//! What counts towards the limit of an address space ([`super::limit`]).

use slat::PAGE_SIZE;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// A generation begins when this part of the limit has come in since the last.
const AHEAD: u64 = 4;

/// What counts.
#[derive(Debug)]
pub(super) struct Charge {
    pub(super) limit: u64,
    // ORDER(charge): Relaxed, all: numbers, and nothing else is known from them.
    resident: AtomicI64,
    lent: AtomicI64,
    /// Pages that have come since the last generation began.
    came: AtomicI64,
}

impl Charge {
    pub(super) fn new(limit: Option<u64>) -> Self {
        let [resident, lent, came] = [const { AtomicI64::new(0) }; 3];
        Self { limit: limit.unwrap_or(u64::MAX), resident, lent, came }
    }

    /// Pages that came, or went.
    pub(super) fn add_resident(&self, pages: i64) {
        self.resident.fetch_add(pages, Relaxed);
        self.came.fetch_add(pages.max(0), Relaxed);
    }

    /// Pages that were lent for tables of VMs, or came back.
    pub(super) fn add_lent(&self, pages: i64) {
        self.lent.fetch_add(pages, Relaxed);
    }

    /// A generation has begun.
    pub(super) fn begin(&self) {
        self.came.store(0, Relaxed);
    }

    /// Whether another generation should begin ahead of need; true for one of the threads that ask.
    pub(super) fn is_time(&self) -> bool {
        let enough = |came: i64| self.limit < u64::MAX && came as u64 * PAGE_SIZE > self.limit / AHEAD;
        enough(self.came.load(Relaxed)) && enough(self.came.swap(0, Relaxed))
    }

    pub(super) fn pages(&self) -> u64 {
        (self.resident.load(Relaxed) + self.lent.load(Relaxed)).max(0) as u64
    }
}
