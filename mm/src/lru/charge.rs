//! What counts towards the limit of an address space ([`super::limit`]). Threads that fault share no line of it.

use crate::ledger::Count;
use crate::shards::Shards;
use slat::PAGE_SIZE;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// A generation begins when this part of the limit has come in since the last.
const AHEAD: u64 = 4;
/// A thread says that so much of that part has come in by its faults.
const STEPS: u64 = 16;

/// What counts.
#[derive(Debug)]
pub(super) struct Charge {
    pub(super) limit: u64,
    // ORDER(charge): Relaxed, all: numbers, and nothing else is known from them.
    resident: Count,
    lent: AtomicI64,
    /// Pages that have come since the last generation began, but for those that threads have not said yet.
    came: AtomicI64,
    unsaid: Shards<AtomicI64>,
    /// A thread says it when there are so many.
    step: i64,
}

impl Charge {
    pub(super) fn new(limit: Option<u64>) -> Self {
        let [lent, came] = [const { AtomicI64::new(0) }; 2];
        let limit = limit.unwrap_or(u64::MAX);
        let step = (limit / PAGE_SIZE / AHEAD / STEPS).clamp(1, 32) as i64;
        Self { limit, resident: Count::new(), lent, came, unsaid: Shards::new(), step }
    }

    /// Pages that came, or went.
    pub(super) fn add_resident(&self, pages: i64) {
        self.resident.add(pages);
        if pages > 0 && self.limit < u64::MAX {
            let unsaid = self.unsaid.mine();
            let now = unsaid.fetch_add(pages, Relaxed) + pages;
            if now >= self.step {
                unsaid.fetch_sub(now, Relaxed);
                self.came.fetch_add(now, Relaxed);
            }
        }
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
        self.with_lent(self.resident.exact())
    }

    /// As many or more: one look at what other threads seldom write.
    pub(super) fn pages_at_most(&self) -> u64 {
        self.with_lent(self.resident.at_most())
    }

    fn with_lent(&self, pages: u64) -> u64 {
        (pages as i64 + self.lent.load(Relaxed)).max(0) as u64
    }
}
