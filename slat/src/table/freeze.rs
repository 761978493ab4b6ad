//! Freezing: one thread owns an entry for a moment.
//!
//! While an entry is frozen, other threads' faults retry or wait. The thread that froze it must therefore thaw it, even
//! if the host panics meanwhile. Unless it decided otherwise, it restores the old word.

use super::entry::{Entry, Word};

/// An entry that this thread has frozen. Dropping it restores the old word.
pub(crate) struct Freeze<'w> {
    entry: &'w Entry,
    was: Word,
    frozen: Word,
}

impl<'w> Freeze<'w> {
    /// Replaces `was` by `frozen`; returns `None` if the entry has changed. A stamp taken afterwards is valid for the
    /// thawed word: either the stamp sees an invalidation, or the invalidation sees the frozen entry and replaces it.
    pub(crate) fn new(entry: &'w Entry, was: Word, frozen: Word) -> Option<Self> {
        entry.cas(was, frozen).ok()?;
        // The frozen entry before the scan of active invalidations; pairs with the fence in
        // `Ticket::announce`.
        fence!(upgrade.freeze);
        Some(Self { entry, was, frozen })
    }

    /// Thaws the entry to `word`. Returns false if an invalidation has taken the entry meanwhile; it then owes the
    /// flush.
    #[must_use = "the invalidation that took the entry did not know what it was"]
    pub(crate) fn thaw(self, word: Word) -> bool {
        let ours = self.entry.cas(self.frozen, word).is_ok();
        core::mem::forget(self);
        ours
    }
}

impl Drop for Freeze<'_> {
    fn drop(&mut self) {
        let _ = self.entry.cas(self.frozen, self.was);
    }
}
