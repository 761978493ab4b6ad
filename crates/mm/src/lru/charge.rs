//! The memory that counts towards the limit of an address space ([`crate::reclaim::limit`]). Faulting threads share no
//! cache line of it.

use crate::ledger::Count;
use crate::shards::Shards;
use slat::PAGE_SIZE;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// A generation begins after the limit divided by this has been brought in.
const GENERATIONS_PER_LIMIT: u64 = 4;
/// A thread adds its pages to the shared count this often per generation.
const FLUSHES_PER_GENERATION: u64 = 16;

/// Pages and table pages charged to an address space.
#[derive(Debug)]
pub(crate) struct Charge {
    pub(crate) limit: u64,
    // ORDER(charge): Relaxed, all: numbers; no other memory depends on them.
    resident: Count,
    lent: AtomicI64,
    /// Pages brought in since the last generation began, without those still in `pending`.
    since_generation: AtomicI64,
    pending: Shards<AtomicI64>,
    /// A thread flushes its shard of `pending` at this many pages.
    flush_at: i64,
}

impl Charge {
    pub(crate) fn new(limit: Option<u64>) -> Self {
        let [lent, since_generation] = [const { AtomicI64::new(0) }; 2];
        let limit = limit.unwrap_or(u64::MAX);
        let flush_at =
            (limit / PAGE_SIZE / GENERATIONS_PER_LIMIT / FLUSHES_PER_GENERATION).clamp(1, 32) as i64;
        Self { limit, resident: Count::new(), lent, since_generation, pending: Shards::new(), flush_at }
    }

    /// Adds pages that were brought in, or subtracts pages that left.
    pub(crate) fn add_resident(&self, pages: i64) {
        self.resident.add(pages);
        if pages > 0 && self.limit < u64::MAX {
            let pending = self.pending.mine();
            let now = pending.fetch_add(pages, Relaxed) + pages;
            if now >= self.flush_at {
                pending.fetch_sub(now, Relaxed);
                self.since_generation.fetch_add(now, Relaxed);
            }
        }
    }

    /// Adds pages lent for tables of VMs, or subtracts returned ones.
    pub(crate) fn add_lent(&self, pages: i64) {
        self.lent.fetch_add(pages, Relaxed);
    }

    /// Starts counting for a new generation.
    pub(crate) fn begin(&self) {
        self.since_generation.store(0, Relaxed);
    }

    /// Whether another generation should begin ahead of need. Returns true to one of the threads that ask.
    pub(crate) fn is_time(&self) -> bool {
        let enough = |since_generation: i64| {
            self.limit < u64::MAX && since_generation as u64 * PAGE_SIZE > self.limit / GENERATIONS_PER_LIMIT
        };
        enough(self.since_generation.load(Relaxed)) && enough(self.since_generation.swap(0, Relaxed))
    }

    pub(crate) fn pages(&self) -> u64 {
        self.with_lent(self.resident.exact())
    }

    /// An upper bound of `pages`, from one value that other threads seldom write.
    pub(crate) fn pages_at_most(&self) -> u64 {
        self.with_lent(self.resident.at_most())
    }

    fn with_lent(&self, pages: u64) -> u64 {
        (pages as i64 + self.lent.load(Relaxed)).max(0) as u64
    }
}
