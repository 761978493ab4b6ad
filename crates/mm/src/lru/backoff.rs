//! Backoff after a failed reclaim. If all pages of a group are pinned or merged, each thread that needs room
//! would scan every page several times before it is refused.
//!
//! A reclaim that found no page to try records the state at that moment. While the state is unchanged the next
//! threads are refused at once; one of [`RETRY_EVERY`] retries anyway. A page may have become evictable if
//!
//! * a page has come or gone;
//! * a thread has dropped one of several references to a frame: a device's pin, KSM's, or a temporary one;
//! * a page was tried, with any result: a device may have room again without notice;
//! * the settings have changed.

use parking_lot::Mutex;
use std::iter::Sum;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// One of this many threads retries while the state is unchanged.
const RETRY_EVERY: u32 = 64;

/// The state on which it depends whether a page is evictable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ReclaimState {
    /// Number of present pages.
    pub(crate) resident: u64,
    /// Number of pages tried so far.
    pub(crate) tried: u64,
    /// The swappiness setting.
    pub(crate) swappiness: u64,
    /// Number of references that were dropped while the frame kept others, in the whole arena.
    pub(crate) unshared: u64,
}

impl Sum for ReclaimState {
    /// Combines address spaces of one arena.
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            resident: sum.resident + one.resident,
            tried: sum.tried + one.tried,
            swappiness: sum.swappiness + one.swappiness,
            unshared: one.unshared,
        })
    }
}

/// The state at the last failed reclaim of an LRU.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    last: Mutex<Option<ReclaimState>>,
    refused: AtomicU32,
}

impl Backoff {
    /// Whether the next reclaim would fail too. False for one of [`RETRY_EVERY`] calls.
    pub(crate) fn is_pending(&self, now: ReclaimState) -> bool {
        *self.last.lock() == Some(now) && self.refused.fetch_add(1, Relaxed) % RETRY_EVERY != RETRY_EVERY - 1
    }

    /// Records a reclaim that found no page to try, unless the state changed during it.
    pub(crate) fn record_failure(&self, before: ReclaimState, after: ReclaimState) {
        *self.last.lock() = Some(after).filter(|_| before == after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_retry_in_many_is_made_and_any_after_a_change() {
        let (backoff, state) = (Backoff::default(), ReclaimState { resident: 5, ..ReclaimState::default() });
        assert!(!backoff.is_pending(state), "no failure is recorded");
        backoff.record_failure(state, ReclaimState { tried: 1, ..state });
        assert!(!backoff.is_pending(state), "a page was tried");
        backoff.record_failure(state, state);
        let refused = (0..RETRY_EVERY).filter(|_| backoff.is_pending(state)).count();
        assert_eq!(refused as u32, RETRY_EVERY - 1);
        assert!(!backoff.is_pending(ReclaimState { unshared: 1, ..state }));
    }
}
