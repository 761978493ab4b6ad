//! `Remembered`: what was found in one version of the slots, in three words that any number of threads read and write.
//!
//! The words are guarded by a sequence number, odd while they are being written, and named by the version that they
//! were copied from: any later one makes them stale at once.

use crate::sync::prim::{Acquire, AtomicU64, Relaxed, Release, fence};

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    sequence: AtomicU64,
    version: AtomicU64,
    words: [AtomicU64; 3],
}

impl Remembered {
    /// The words, if they are of `version`.
    #[inline]
    pub(super) fn get(&self, version: u64) -> Option<[u64; 3]> {
        // ORDER(hint): Acquire before the words, fence after them; pairs with `put`: equal and even on both
        // sides means that nothing was written between.
        let before = self.sequence.load(Acquire);
        if before & 1 == 1 || self.version.load(Relaxed) != version {
            return None;
        }
        let [a, b, c] = &self.words;
        let words = [a.load(Relaxed), b.load(Relaxed), c.load(Relaxed)];
        // ORDER(hint): see above.
        if !seeded!(HintReadUnfenced) {
            fence(Acquire);
        }
        (self.sequence.load(Relaxed) == before).then_some(words)
    }

    /// Remembers `words`, found in `version`. Gives up where another thread is writing. Rare, and kept out of the
    /// fault's own code, which is slower with it inside.
    #[inline(never)]
    pub(super) fn put(&self, words: [u64; 3], version: u64) {
        let before = self.sequence.load(Relaxed);
        // ORDER(hint): claims the words; Acquire keeps them below it.
        if before & 1 == 1 || self.sequence.compare_exchange(before, before + 1, Acquire, Relaxed).is_err() {
            return;
        }
        // ORDER(hint): the odd number before the words, for readers on machines that reorder stores.
        if !seeded!(HintWriteUnfenced) {
            fence(Release);
        }
        self.version.store(version, Relaxed);
        for (cell, word) in self.words.iter().zip(words) {
            cell.store(word, Relaxed);
        }
        // ORDER(hint): the words before the even number; pairs with `get`.
        self.sequence.store(before + 2, unless_seeded!(HintRelaxed, Release));
    }

    /// Names a version that there never is. Not beside a `put`.
    #[inline]
    pub(super) fn forget(&self) {
        self.version.store(u64::MAX, Relaxed);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
