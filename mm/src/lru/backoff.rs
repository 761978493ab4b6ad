//! Looking in vain: where all that a group has is pinned, or merged, each thread that needs room would look at every page, several
//! times, before it is refused.
//!
//! So what was so at a look that found nothing to try is remembered. As long as it is so the next thread is refused at once, but for each
//! one of [`RETRY_EVERY`] that looks all the same. A page may be evictable from now on where
//!
//! * one has come, or gone;
//! * a thread has let go of a frame that others have: a device its pin, KSM its own reference, a thread what it had in hand;
//! * one was tried, whatever came of it: a device has room again without telling;
//! * the settings are others.

use parking_lot::Mutex;
use std::iter::Sum;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Of so many threads that would look in vain one looks all the same.
const RETRY_EVERY: u32 = 64;

/// What has to change before a page is evictable that was not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ReclaimState {
    /// Pages that are there.
    pub(crate) resident: u64,
    /// Pages that were tried so far.
    pub(crate) tried: u64,
    /// What settings allow.
    pub(crate) swappiness: u64,
    /// Frames of the arena that others had, and that were let go of.
    pub(crate) unshared: u64,
}

impl Sum for ReclaimState {
    /// Of several address spaces on one arena.
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            resident: sum.resident + one.resident,
            tried: sum.tried + one.tried,
            swappiness: sum.swappiness + one.swappiness,
            unshared: one.unshared,
        })
    }
}

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    last: Mutex<Option<ReclaimState>>,
    refused: AtomicU32,
}

impl Backoff {
    /// Whether the next look would be in vain, too.
    pub(super) fn is_pending(&self, now: ReclaimState) -> bool {
        *self.last.lock() == Some(now) && self.refused.fetch_add(1, Relaxed) % RETRY_EVERY != RETRY_EVERY - 1
    }

    /// A look has found nothing to try; what was so before and after it.
    pub(super) fn record_failure(&self, before: ReclaimState, after: ReclaimState) {
        *self.last.lock() = Some(after).filter(|_| before == after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_retry_in_many_is_made_and_any_after_a_change() {
        let (backoff, state) = (Backoff::default(), ReclaimState { resident: 5, ..ReclaimState::default() });
        assert!(!backoff.is_pending(state), "none has looked");
        backoff.record_failure(state, ReclaimState { tried: 1, ..state });
        assert!(!backoff.is_pending(state), "there was something to try");
        backoff.record_failure(state, state);
        let refused = (0..RETRY_EVERY).filter(|_| backoff.is_pending(state)).count();
        assert_eq!(refused as u32, RETRY_EVERY - 1);
        assert!(!backoff.is_pending(ReclaimState { unshared: 1, ..state }));
    }
}
