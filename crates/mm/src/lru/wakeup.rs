//! How a fault tells an [`Evictor`](super::Evictor) that little room is left.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// State shared by an evictor and the faults.
#[derive(Debug, Default)]
pub(crate) struct EvictorWakeup {
    /// Whether threads of an evictor wait to be woken.
    // ORDER(evictor): Relaxed: a hint; if one fault misses it, a later fault sees it.
    pub(crate) waits: AtomicBool,
    pub(crate) stop: Mutex<bool>,
    pub(crate) changed: Condvar,
}

impl EvictorWakeup {
    /// Wakes the evictor's threads if any wait.
    #[inline]
    pub(crate) fn wake(&self) {
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
