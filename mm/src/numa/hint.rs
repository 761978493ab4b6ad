//! Hint faults: a thread accesses a protnone page, and the balancer learns of it.
//!
//! The page is mapped again as it was. It moves to the node that asks if it lies elsewhere and the hint before
//! this one came from the same node: **two strikes**, the kernel's rule. A page that two nodes use in turn would
//! otherwise move back and forth for ever, and a single stray access would cost a copy.
//!
//! The move is a change like any other, inside a notification. No vCPU has the page mapped any more, but a vCPU
//! may not have flushed yet, and a copy made beside a store through a stale translation loses that store. The
//! engine knows which flushes are due, so the notification mostly costs none.

use super::stats::Counted;
use crate::pte::Pte;
use crate::space::AddressSpace;
use crate::state::State;
use slat::{Gfn, Idle, Level, Pfn, Span, Why};

impl AddressSpace {
    /// A hint fault on this frame, whose page lock the caller holds: whether it should move to this thread's node.
    pub(crate) fn hint(&self, pfn: Pfn, level: Level) -> bool {
        let here = self.arena.here();
        self.numa.add(Counted::Hint, 1);
        let before = self.arena.notes().accessed(pfn, here);
        if self.arena.node_of(pfn) == here {
            self.numa.add(Counted::Local, 1);
            return false;
        }
        before == Some(here) && self.is_sole(pfn, level)
    }

    /// Moves a protnone page to this thread's node and maps it again; where that node is full, where it is. Looks
    /// again under the page lock, and does nothing where another thread was faster.
    pub(crate) fn bring_home(&self, state: &State, idle: &mut Idle, page: Gfn, level: Level) {
        let pages = Span::sized(page.base(level), level.pages());
        let mut fresh = self.arena.page_on(self.arena.here(), level).ok();
        if fresh.is_none() {
            self.numa.add(Counted::NoRoom, 1);
            let _lock = self.lock_region(page);
            let (level, entry) = self.map.find(page);
            if let Pte::Protnone { pfn, writable } = Pte::of(entry.load(), level) {
                entry.store(Pte::Mapped { pfn, writable }.word(level));
            }
            return;
        }
        let mut released = self.arena.released();
        self.around(state, idle, pages, Why::Migrate, &mut |_, _| {
            let _lock = self.lock_region(page);
            let (found, entry) = self.map.find(page);
            if let Pte::Protnone { pfn, writable } = Pte::of(entry.load(), found)
                && found == level
                && self.is_sole(pfn, level)
                && let Some(fresh) = fresh.take()
            {
                self.arena.copy(pfn, fresh.pfn(), level);
                self.arena.notes().accessed(fresh.pfn(), self.arena.here());
                self.lru_replace(pages.start, level, fresh.pfn(), None);
                entry.store(Pte::Mapped { pfn: fresh.keep(), writable }.word(level));
                released.add(pfn, level);
                self.numa.add(Counted::Migrated, level.pages());
            }
        });
    }
}
