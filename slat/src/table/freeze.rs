//! Freezing: an entry that is one thread's for a moment, however that moment ends.
//!
//! While an entry is frozen everybody else turns back at it, or waits. So whoever froze it thaws it, to what it was where
//! nothing else was decided: also where the host panics when it is asked, and takes the thread with it.

use super::entry::{Entry, Word};

/// An entry that this thread has frozen; thawed to what it was when dropped.
#[derive(Debug)]
pub(crate) struct Freeze<'w> {
    entry: &'w Entry,
    was: Word,
    frozen: Word,
}

impl<'w> Freeze<'w> {
    /// Puts `frozen` in the place of `was`; nothing where the entry has changed.
    pub(crate) fn new(entry: &'w Entry, was: Word, frozen: Word) -> Option<Self> {
        // Made only when it is frozen: dropping one thaws.
        entry.cas(was, frozen).is_ok().then(|| Self { entry, was, frozen })
    }

    /// Thaws it to `word`. False where somebody has invalidated it meanwhile, who owes the flush.
    #[must_use = "whoever invalidated the entry did not know what it was"]
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
