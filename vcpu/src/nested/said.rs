//! What T has said: the oracle of L1's staleness.
//!
//! ```text
//! what a vCPU may use for g2 = { T(t)(g2) : t since that vCPU's last flush } ∘ { host, now }
//! ```
//! L1 tells of each entry **before** it stores it, so that no vCPU uses what is not told. A vCPU that flushes asks for the time
//! **before** it does. What the host has behind a frame of L1 is asked at the moment of use: host staleness is never allowed.

use slat::{Gfn, Perms};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// A moment, as [`Said`] counts them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Since(u64);

/// What T says of a frame of L2: L1's frame, and what is allowed; or nothing.
type Word = Option<(Gfn, Perms)>;

/// See the module's header.
#[derive(Debug, Default)]
pub struct Said {
    clock: AtomicU64,
    /// By frame of L2: what T has said, and since when, in order.
    frames: Mutex<HashMap<Gfn, Vec<(Since, Word)>>>,
}

impl Said {
    /// T is about to say this of `g2`.
    pub fn says(&self, g2: Gfn, word: Word) {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Since(self.clock.fetch_add(1, SeqCst) + 1);
        frames.entry(g2).or_default().push((now, word));
    }

    /// The present moment, for a vCPU that is about to flush.
    pub fn now(&self) -> Since {
        // With the lock: what was told before is in its place.
        let _frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        Since(self.clock.load(SeqCst))
    }

    /// What a vCPU may go by for `g2` whose last flush was `since`: the frames of L1, with what each allowed.
    pub fn since(&self, g2: Gfn, since: Since) -> Vec<(Gfn, Perms)> {
        let frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(said) = frames.get(&g2) else { return Vec::new() };
        // What was said last before the flush is what T said then.
        let first = said.partition_point(|&(told, _)| told <= since).saturating_sub(1);
        said[first..].iter().filter_map(|&(_, word)| word).collect()
    }

    /// Whether T has said anything of `g2` since, perhaps the same once more.
    pub fn has_changed(&self, g2: Gfn, since: Since) -> bool {
        let frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        frames.get(&g2).and_then(|said| said.last()).is_some_and(|&(told, _)| told > since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_at_the_flush_and_later_counts() {
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
