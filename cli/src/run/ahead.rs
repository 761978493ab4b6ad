//! Threads that work ahead of faults: they free memory below `--limit` and zero frames.
//!
//! While these threads keep up, a fault neither reclaims nor zeroes. Otherwise the fault does the work itself, and
//! the report counts it. At the end of the run each thread stops within one batch of pages.

use super::args::AheadArgs;
use super::guest_vm::Machine;
use crate::figures::Ahead;
use slat::{Format, PAGE_SIZE};
use slat_mm::{Evictor, ListStats, Lru, Zeroer};

/// The default of `--zero-ahead`: a guest uses this much in about a millisecond.
const ZEROED: u64 = 4 << 20;

/// The threads. They stop on drop.
#[must_use = "dropping it stops the threads"]
pub struct Threads {
    _evictor: Option<Evictor>,
    _zeroer: Option<Zeroer>,
}

impl AheadArgs {
    /// Starts the threads that the flags ask for.
    pub fn start<F: Format>(&self, machine: &Machine<F>) -> Threads {
        let evictors = usize::from(self.evictors.unwrap_or(1));
        let wanted = machine.swap.is_some() && evictors > 0;
        let frames = self.zero_ahead.unwrap_or(ZEROED) / PAGE_SIZE;
        Threads {
            // A machine with swap has an LRU.
            _evictor: wanted.then(|| Evictor::start(&machine.space, evictors).ok()).flatten(),
            _zeroer: (frames > 0).then(|| Zeroer::start(machine.space.arena(), frames)),
        }
    }
}

impl Ahead {
    /// The counters up to now.
    pub fn of<F: Format>(machine: &Machine<F>) -> Self {
        let ListStats { taken, zeroed, .. } = machine.space.arena().list_stats();
        let lru = machine.space.lru().map(Lru::stats).unwrap_or_default();
        Self { frames: taken, zeroed, direct_reclaims: lru.direct_reclaims }
    }
}
