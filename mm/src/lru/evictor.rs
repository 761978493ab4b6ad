//! Eviction ahead of need: threads that keep some room below the limit, so that faults seldom have to make it.
//!
//! ```text
//! 0 ─────────────────────────────────────────── high ───── low ───── limit
//!                                     stop here ◀─┘          └─▶ begin here     a fault makes room itself
//! ```
//! A fault that finds less room than `low` wakes them and goes on: it waits for no device. Each thread waits for one batch; with
//! several threads as many batches are on their way to devices at once. Where the limit is a [group's](crate::Group), its room counts.

use super::Lru;
use crate::space::AddressSpace;
use slat::{Idle, PAGE_SIZE};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

/// These parts of the limit are kept free: the evictor begins with less than the former, and ends with the latter.
const LOW: u64 = 32;
const HIGH: u64 = 16;
/// Pages that one thread evicts before it looks again.
const BATCH: u64 = 64;
/// Where nothing could be evicted it is tried again after so long, or when a fault asks.
const PAUSE: Duration = Duration::from_millis(100);

/// Threads that evict the coldest pages of an address space before its limit, or that of its group, is reached, until this is
/// dropped or the address space is.
///
/// ```
/// # use slat_mm::*;
/// let arena = Arena::builder().limit(64 << 20).build()?;
/// let swap = Swap::builder().memory(16 << 20).build(&arena)?;
/// let space = AddressSpace::builder(&arena).swap(&swap).limit(8 << 20).build()?;
/// let evictor = Evictor::start(&space, 2)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it stops the threads"]
pub struct Evictor {
    space: Weak<AddressSpace>,
    threads: Vec<JoinHandle<()>>,
}

impl Evictor {
    /// Starts it, with so many threads, one at least, as far as the system has threads to give.
    ///
    /// # Errors
    /// [`LruError::Off`](super::LruError::Off) where the address space has no LRU.
    pub fn start(space: &Arc<AddressSpace>, threads: usize) -> Result<Self, super::LruError> {
        let lru = space.lru().ok_or(super::LruError::Off)?;
        *lru.wakeup.stop.lock() = false;
        let thread = |_| {
            let space = Arc::downgrade(space);
            let thread = Builder::new().name("evictor".into()).spawn(move || {
                // A new thread has one.
                let Some(mut idle) = Idle::take() else { return };
                while space.upgrade().is_some_and(|space| space.evict_ahead(&mut idle)) {}
            });
            thread.ok()
        };
        Ok(Self { space: Arc::downgrade(space), threads: (0..threads.max(1)).filter_map(thread).collect() })
    }
}

impl Drop for Evictor {
    fn drop(&mut self) {
        if let Some(space) = self.space.upgrade()
            && let Some(lru) = space.lru()
        {
            *lru.wakeup.stop.lock() = true;
            lru.wakeup.changed.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A panic has been printed by its own thread. One that has dropped the address space ends by itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl AddressSpace {
    /// One turn of an evictor's thread; false where it is over.
    fn evict_ahead(&self, idle: &mut Idle) -> bool {
        let Some(lru) = self.lru() else { return false };
        let mut evicted = 1;
        // All of `high`, unless nothing goes.
        while evicted > 0 && !*lru.wakeup.stop.lock() && self.lacks_room(lru, HIGH) {
            evicted = self.reclaim_beside_others(idle, BATCH) + self.write_back_if_full(lru);
        }
        let mut stop = lru.wakeup.stop.lock();
        if *stop {
            return false;
        }
        lru.wakeup.waits.store(true, Relaxed);
        if evicted == 0 || !self.lacks_room(lru, LOW) {
            lru.wakeup.changed.wait_for(&mut stop, PAUSE);
        }
        !*stop
    }

    /// Compressed copies take room, too: where pages went and there is little room all the same, the oldest go to a device.
    fn write_back_if_full(&self, lru: &Lru) -> u64 {
        let half = self.bound(lru) / 2;
        let much = half < u64::MAX / 2 && self.stored.bytes() > half;
        if much { self.write_back_own(BATCH) as u64 } else { 0 }
    }

    /// Wakes the evictor, if there is one and little room.
    #[inline]
    pub(super) fn wake_evictor(&self, lru: &Lru) {
        if lru.wakeup.waits.load(Relaxed) && self.lacks_room(lru, LOW) {
            lru.wakeup.wake();
        }
    }

    /// Whether less than this part of the limit is free.
    fn lacks_room(&self, lru: &Lru, part: u64) -> bool {
        let spare = (self.bound(lru) / part).max(PAGE_SIZE);
        !self.has_room(lru, spare) || !seeded!(EvictorAlone) && !self.group_has_bytes(spare)
    }

    /// The lower of its own limit and its group's.
    fn bound(&self, lru: &Lru) -> u64 {
        lru.charge.limit.min(self.group_limit())
    }
}
