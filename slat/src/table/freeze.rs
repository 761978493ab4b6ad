//! Freezing: an entry that is one thread's for a moment, however that moment ends.
//!
//! While an entry is frozen every other thread turns back at it, or waits. So the thread that froze it thaws it, to what it was where
//! nothing else was decided: also where the host panics when it is asked, and takes the thread with it.

use super::entry::{Entry, Word};
use crate::sync::prim::{SeqCst, fence};

/// An entry that this thread has frozen; thawed to what it was when dropped.
#[derive(Debug)]
pub(crate) struct Freeze<'w> {
    entry: &'w Entry,
    was: Word,
    frozen: Word,
}

impl<'w> Freeze<'w> {
    /// Puts `frozen` in the place of `was`; nothing where the entry has changed. A stamp taken afterwards is good for what
    /// it is thawed to: it sees an invalidation, or that one sees the frozen entry and replaces it.
    pub(crate) fn new(entry: &'w Entry, was: Word, frozen: Word) -> Option<Self> {
        entry.cas(was, frozen).ok()?;
        // ORDER(upgrade): the frozen entry before the look at who is active; pairs with the fence in `Ticket::announce`.
        if !seeded!(FreezeUnfenced) {
            fence(SeqCst);
        }
        Some(Self { entry, was, frozen })
    }

    /// Thaws it to `word`. False where an invalidation has taken it meanwhile, and owes the flush.
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
