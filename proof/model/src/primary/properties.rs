//! The properties at the end of all programs.

use super::shared::{Mapped, Page};
use super::{Op, Primary, State};
use crate::state::Bad;

impl Primary {
    /// At the end, checks that unmapped pages are empty, and that the child is a snapshot of one moment.
    pub(super) fn audit(&self, s: &mut State) {
        let left = |page: &Page| page.mapped == Mapped::Nothing && page.entry.is_some();
        if s.shared.pages.iter().any(left) {
            s.shared.bad = Some(Bad::PageLeft);
        }
        self.audit_children(s);
        self.audit_stores(s);
    }

    /// Checks that a child still has its contents, and that they are of one moment.
    fn audit_children(&self, s: &mut State) {
        let contents = |frame: u8| s.shared.contents[usize::from(frame)];
        // The child maps the frame in the cache when its page comes back.
        let children = s.shared.pages.map(|page| {
            let copy = page.child_copy.map(|copy| page.cached.map_or(copy, |(frame, _)| contents(frame)));
            page.child.map(contents).or(copy)
        });
        let changed = |(page, child): (&Page, &Option<u8>)| child.is_some_and(|child| child != page.forked);
        if s.shared.pages.iter().zip(&children).any(changed) {
            s.shared.bad = Some(Bad::StoreAfterCopy);
        }
        // A child that has a store of a thread has that thread's earlier stores.
        for (i, ops) in self.programs.iter().enumerate() {
            let mut missing = false;
            for (nth, op) in ops.iter().enumerate() {
                let Op::Store(page) = *op else { continue };
                let Some(contents) = children[usize::from(page)] else { continue };
                let has = contents & bit(i, nth as u8) != 0;
                if missing && has {
                    s.shared.bad = Some(Bad::ChildTorn);
                }
                missing |= !has;
            }
        }
    }

    /// If no page is discarded, checks that every store is present.
    fn audit_stores(&self, s: &mut State) {
        let throws = |op: &Op| matches!(op, Op::Mmap(_) | Op::Munmap(_) | Op::Mprotect(_));
        if self.programs.iter().flatten().any(throws) {
            return;
        }
        let pages = s.shared.pages.map(|page| {
            let frame = page.entry.map(|(frame, ..)| s.shared.contents[usize::from(frame)]);
            frame.or(page.copy.map(|(copy, _)| copy)).unwrap_or(0)
        });
        for (i, ops) in self.programs.iter().enumerate() {
            for (nth, op) in ops.iter().enumerate() {
                if let Op::Store(page) | Op::Write(page) = *op
                    && pages[usize::from(page)] & bit(i, nth as u8) == 0
                {
                    s.shared.bad = Some(Bad::StoreLost);
                }
            }
        }
    }
}

/// Returns the bit of a store.
pub(super) fn bit(thread: usize, op: u8) -> u8 {
    1 << (thread as u8 * 3 + op)
}
