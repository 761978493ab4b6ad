//! Background eviction: threads keep some room below the limit, so that faults seldom have to reclaim.
//!
//! ```text
//! 0 ─────────────────────────────────────────── high ───── low ───── limit
//!                                     stop here ◀─┘          └─▶ begin here     a fault reclaims itself
//! ```
//! A fault that finds less room than `low` wakes the threads and continues: it waits for no device. Each thread
//! waits for one batch, so several threads keep several batches in flight. If the limit is a
//! [group's](crate::Group), the group's room counts.

use crate::lru::Lru;
use crate::space::AddressSpace;
use slat::{Idle, PAGE_SIZE};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

/// The evictor begins below a free part of limit / `LOW`, and ends at limit / `HIGH`.
const LOW: u64 = 32;
const HIGH: u64 = 16;
/// Pages that a thread evicts before it checks the room again.
const BATCH: u64 = 64;
/// Time until the next try when no page could be evicted and no fault asks.
const PAUSE: Duration = Duration::from_millis(100);

/// Threads that evict the coldest pages of an address space before its limit, or its group's, is reached. They
/// stop when this or the address space is dropped.
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
    /// Starts `threads` threads, at least one; fewer if the system refuses some.
    ///
    /// # Errors
    /// [`LruError::Off`](crate::lru::LruError::Off) if the address space has no LRU.
    pub fn start(space: &Arc<AddressSpace>, threads: usize) -> Result<Self, crate::lru::LruError> {
        let lru = space.lru().ok_or(crate::lru::LruError::Off)?;
        *lru.wakeup.stop.lock() = false;
        let thread = |_| {
            let space = Arc::downgrade(space);
            let thread = Builder::new().name("evictor".into()).spawn(move || {
                // A new thread always has one.
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
            // A panic was printed by its own thread. A thread that drops the address space ends by itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl AddressSpace {
    /// One turn of an evictor's thread; false if it has to stop.
    fn evict_ahead(&self, idle: &mut Idle) -> bool {
        let Some(lru) = self.lru() else { return false };
        let mut evicted = 1;
        // Evict up to `high`, or until no page can be evicted.
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

    /// Writes the oldest compressed copies to a device if they take more than half of the limit: compressed
    /// copies count too.
    fn write_back_if_full(&self, lru: &Lru) -> u64 {
        let half = self.bound(lru) / 2;
        let much = half < u64::MAX / 2 && self.stored.bytes() > half;
        if much { self.write_back_own(BATCH) as u64 } else { 0 }
    }

    /// Wakes the evictor's threads if any wait and little room is left.
    #[inline]
    pub(super) fn wake_evictor(&self, lru: &Lru) {
        if lru.wakeup.waits.load(Relaxed) && self.lacks_room(lru, LOW) {
            lru.wakeup.wake();
        }
    }

    /// Whether less than limit / `part` is free.
    fn lacks_room(&self, lru: &Lru, part: u64) -> bool {
        let spare = (self.bound(lru) / part).max(PAGE_SIZE);
        !self.has_room(lru, spare) || !self.group_has_bytes(spare)
    }

    /// Returns the lower of its own limit and its group's.
    fn bound(&self, lru: &Lru) -> u64 {
        lru.charge.limit.min(self.group_limit())
    }
}
