//! Hint faults: a thread accesses a protnone page, and the balancer learns the node.
//!
//! The page is mapped again as it was. It moves to the faulting node if it is on another node and the last hint
//! came from the same faulting node: **two strikes**, the kernel's rule. Otherwise a page that two nodes use in
//! turn would move back and forth, and one stray access would cost a copy.
//!
//! The move is a change inside a notification. No vCPU's table maps the page any more, but a vCPU may not have
//! flushed yet. Its store through a stale translation during the copy would be lost. The engine knows which
//! flushes are owed, so the notification mostly needs none.

use crate::pte::Pte;
use crate::space::AddressSpace;
use crate::state::State;
use crate::stats::numa::Counted;
use slat::{Gfn, Idle, Level, Pfn, Reason, Span};

impl AddressSpace {
    /// Records a hint fault on this frame; returns whether the page should move to this thread's node. The
    /// caller holds the page lock.
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

    /// Moves a protnone page to this thread's node and maps it; maps it in place if that node is full. Reads
    /// the entry again under the page lock, and does nothing if another thread was faster.
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
        self.around(state, idle, pages, Reason::Migrate, &mut |_, _| {
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
