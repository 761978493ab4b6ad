//! Steps: an open walk going along a range, entry by entry, resting now and then.
//!
//! A walk is a section of the read side (or a lock, under a baseline policy), and nobody's hold may grow with the VM:
//! grace periods wait for sections, vCPUs for locks. So after a fixed number of entries the next step **rests**: it
//! leaves, enters again in the same mode, and goes on from the root at the goal frame. KVM's iterator asks its caller
//! not to use anything that it held before a yield. Here that does not compile: a step borrows the walk, and the
//! next one can only be taken when the last one is gone.
//!
//! What a walk owes stays owed over a rest. KVM must flush before it lets go of its lock, because others take what
//! the tables say for what the TLBs say; here they do not: a hole carries the number of its invalidation, and
//! whoever meets one that has not been flushed owes the flush too (rule 7 of [`crate::notify`]).

use super::cursor::{Cursor, Step};
use super::entry::{Entry, Word};
use super::format::Format;
use super::memory::ENTRIES;
use super::walk::Walk;
use crate::addr::Gfn;
use crate::host::Host;
use crate::sync::mode::Mode;

/// Entries between two rests: some ten microseconds of work.
pub(super) const STRETCH: u64 = 8 * ENTRIES as u64;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Steps<'s, 'g, F: Format, H: Host, M: Mode> {
    walk: &'s mut Walk<'g, F, H, M>,
    cursor: Cursor<F>,
    /// Whether it may rest by itself; else it stops where it should.
    rests: bool,
}

impl<'s, 'g, F: Format, H: Host, M: Mode> Steps<'s, 'g, F, H, M> {
    pub(super) fn new(walk: &'s mut Walk<'g, F, H, M>, cursor: Cursor<F>, rests: bool) -> Self {
        Self { walk, cursor, rests }
    }

    /// The first frame that has not been visited yet; the end of the range where all have been.
    pub(crate) fn goal(&self) -> Gfn {
        self.cursor.goal()
    }

    /// The next entry, and the walk that it belongs to; or `None` past the end of the range.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(&Walk<'g, F, H, M>, Step<'_>)> {
        if self.walk.is_rest_due() {
            if !self.rests {
                return None;
            }
            self.rest();
        }
        self.walk.taken += 1;
        // SAFETY: the walk is one section from its opening or last rest, where the cursor began, to the next; a step
        // that borrows `self` ends before that.
        let step = unsafe { self.cursor.next(&self.walk.vm.host) };
        step.map(|step| (&*self.walk, step))
    }

    /// The entries after the one visited last, in the same table and in the range, and the frame of the first; none
    /// above the level of pages.
    pub(crate) fn ahead(&self) -> (&Walk<'g, F, H, M>, (&[Entry], Gfn)) {
        // SAFETY: as in `next`.
        (self.walk, unsafe { self.cursor.ahead() })
    }

    /// What the visitor found in the entry visited last, if it looked again: see [`Cursor::saw`].
    pub(crate) fn saw(&mut self, word: Word) {
        self.cursor.saw(word);
    }

    /// Leaves out the next `entries` of those [`ahead`](Self::ahead): they have been visited.
    pub(crate) fn advance(&mut self, entries: u64) {
        self.walk.taken += entries;
        self.cursor.advance(entries);
    }

    #[cold]
    fn rest(&mut self) {
        self.walk.rest();
        self.cursor.restart(self.walk.root());
    }
}
