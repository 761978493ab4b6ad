//! How a fault tells an [`Evictor`](super::Evictor) that there is less room than there should be.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What an evictor and the faults have in common.
#[derive(Debug, Default)]
pub(super) struct EvictorWakeup {
    /// Threads wait to be woken. Where there is no evictor none does.
    // ORDER(evictor): Relaxed: a hint; a fault that misses it finds the next.
    pub(super) waits: AtomicBool,
    pub(super) stop: Mutex<bool>,
    pub(super) changed: Condvar,
}

impl EvictorWakeup {
    /// There is less room than there should be.
    #[inline]
    pub(super) fn wake(&self) {
        if self.waits.load(Relaxed) {
            self.wake_waiting();
        }
    }

    #[cold]
    fn wake_waiting(&self) {
        let _stop = self.stop.lock();
        self.waits.store(false, Relaxed);
        self.changed.notify_all();
    }
}
