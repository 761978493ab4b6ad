//! The history of T's entries: the oracle of translations that are stale for L1.
//!
//! ```text
//! what a vCPU may use for g2 = { T(t)(g2) : t since that vCPU's last flush } ∘ { host, now }
//! ```
//! L1 records each entry **before** it stores it, so that no vCPU uses an unrecorded one. A vCPU reads the time
//! **before** it flushes. The host's frame for a frame of L1 is taken at the moment of use: translations that
//! are stale for the host are never allowed.

use slat::{Gfn, Perms};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// A moment, as counted by [`Said`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Since(u64);

/// T's entry for a frame of L2: L1's frame and the permissions, or nothing.
type Word = Option<(Gfn, Perms)>;

/// The recorded entries of T.
#[derive(Debug, Default)]
pub struct Said {
    clock: AtomicU64,
    /// For each frame of L2, the entries in order, with their times.
    frames: Mutex<HashMap<Gfn, Vec<(Since, Word)>>>,
}

impl Said {
    /// Records that T's entry for `g2` is about to become `word`.
    pub fn says(&self, g2: Gfn, word: Word) {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Since(self.clock.fetch_add(1, SeqCst) + 1);
        frames.entry(g2).or_default().push((now, word));
    }

    /// Returns the current time, for a vCPU that is about to flush.
    pub fn now(&self) -> Since {
        // Under the lock, so that earlier entries are recorded.
        let _frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        Since(self.clock.load(SeqCst))
    }

    /// Returns the translations of `g2` that a vCPU may use after a flush at `since`: L1's frames and
    /// permissions.
    pub fn since(&self, g2: Gfn, since: Since) -> Vec<(Gfn, Perms)> {
        let frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(said) = frames.get(&g2) else { return Vec::new() };
        // The last entry before the flush was current at the flush.
        let first = said.partition_point(|&(told, _)| told <= since).saturating_sub(1);
        said[first..].iter().filter_map(|&(_, word)| word).collect()
    }

    /// Whether T's entry for `g2` was recorded again since, even with the same value.
    pub fn has_changed(&self, g2: Gfn, since: Since) -> bool {
        let frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        frames.get(&g2).and_then(|said| said.last()).is_some_and(|&(told, _)| told > since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_current_at_the_flush_or_later_are_allowed() {
        let (said, g2) = (Said::default(), Gfn(5));
        assert_eq!(said.since(g2, Since::default()), []);
        said.says(g2, Some((Gfn(1), Perms::RWX)));
        said.says(g2, Some((Gfn(2), Perms::RX)));
        let flushed = said.now();
        assert_eq!(said.since(g2, Since::default()).len(), 2);
        assert_eq!(said.since(g2, flushed), [(Gfn(2), Perms::RX)]);
        assert!(said.has_changed(g2, Since::default()) && !said.has_changed(g2, flushed));
        said.says(g2, None);
        said.says(g2, Some((Gfn(3), Perms::RWX)));
        assert_eq!(said.since(g2, flushed), [(Gfn(2), Perms::RX), (Gfn(3), Perms::RWX)]);
        assert_eq!(said.since(g2, said.now()), [(Gfn(3), Perms::RWX)]);
        said.says(g2, None);
        assert_eq!(said.since(g2, said.now()), []);
    }
}
