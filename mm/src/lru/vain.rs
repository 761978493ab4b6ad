//! Looking in vain: where all that a group has is pinned, or merged, each thread that needs room would look at every page, several
//! times, before it is refused.
//!
//! So what was so at a look that found nothing to try is remembered. As long as it is so the next thread is refused at once, but for each
//! one of [`ANYWAY`] that looks all the same. A page may be evictable from now on where
//!
//! * one has come, or gone;
//! * a thread has let go of a frame that others have: a device its pin, KSM its own reference, a thread what it had in hand;
//! * one was tried, whatever came of it: a device has room again without telling;
//! * the settings are others.

use parking_lot::Mutex;
use std::iter::Sum;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Of so many threads that would look in vain one looks all the same.
const ANYWAY: u32 = 64;

/// What has to change before a page is evictable that was not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Seen {
    /// Pages that are there.
    pub(crate) resident: u64,
    /// Pages that were tried so far.
    pub(crate) tried: u64,
    /// What settings allow.
    pub(crate) swappiness: u64,
    /// Frames of the arena that others had, and that were let go of.
    pub(crate) let_go: u64,
}

impl Sum for Seen {
    /// Of several address spaces on one arena.
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            resident: sum.resident + one.resident,
            tried: sum.tried + one.tried,
            swappiness: sum.swappiness + one.swappiness,
            let_go: one.let_go,
        })
    }
}

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct Vain {
    last: Mutex<Option<Seen>>,
    refused: AtomicU32,
}

impl Vain {
    /// Whether the next look would be in vain, too.
    pub(super) fn would_be(&self, now: Seen) -> bool {
        *self.last.lock() == Some(now) && self.refused.fetch_add(1, Relaxed) % ANYWAY != ANYWAY - 1
    }

    /// A look has found nothing to try; what was so before and after it.
    pub(super) fn was(&self, before: Seen, after: Seen) {
        *self.last.lock() = Some(after).filter(|_| before == after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_many_looks_all_the_same_and_any_after_a_change() {
        let (vain, seen) = (Vain::default(), Seen { resident: 5, ..Seen::default() });
        assert!(!vain.would_be(seen), "none has looked");
        vain.was(seen, Seen { tried: 1, ..seen });
        assert!(!vain.would_be(seen), "there was something to try");
        vain.was(seen, seen);
        let refused = (0..ANYWAY).filter(|_| vain.would_be(seen)).count();
        assert_eq!(refused as u32, ANYWAY - 1);
        assert!(!vain.would_be(Seen { let_go: 1, ..seen }));
    }
}
