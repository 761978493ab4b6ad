//! What the arena knows of frames on their way to swap, and of those that the swap cache has ([`crate::swap`]).

use super::{Arena, CACHED, LEAVING};
use slat::Pfn;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

impl Arena {
    /// An entry that maps the frame is on its way to swap, unless one is already; whether none was. The caller has a reference to the
    /// frame, and says when that is over.
    // ORDER(leaving): Relaxed: a thread that begins it on the same entry holds the same page lock.
    pub(crate) fn begin_leaving(&self, pfn: Pfn) -> bool {
        self.states()[pfn.0 as usize].fetch_or(LEAVING, Relaxed) & LEAVING == 0 || seeded!(LeavingTwice)
    }

    /// Whether one is, for now.
    pub(crate) fn is_leaving(&self, pfn: Pfn) -> bool {
        self.states()[pfn.0 as usize].load(Relaxed) & LEAVING != 0 && !seeded!(LeavingTwice)
    }

    /// It is over.
    pub(crate) fn end_leaving(&self, pfn: Pfn) {
        self.states()[pfn.0 as usize].fetch_and(!LEAVING, Relaxed);
    }

    /// The swap cache has a reference to the frame from now on, or lets go of it next. It has its lock.
    pub(crate) fn set_cached(&self, pfn: Pfn, cached: bool) {
        let state = &self.states()[pfn.0 as usize];
        if cached {
            state.fetch_or(CACHED, Relaxed);
        } else {
            state.fetch_and(!CACHED, Relaxed);
            self.unmapped.lock().remove(&pfn);
        }
    }

    /// Whether it has. A hint without its lock.
    pub(crate) fn is_cached(&self, pfn: Pfn) -> bool {
        self.states()[pfn.0 as usize].load(Relaxed) & CACHED != 0
    }

    /// How often a reference to a frame was given back that has others. Such a frame may be evictable from then on.
    pub(crate) fn unshared(&self) -> u64 {
        self.unshared.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// Those of the frames to which the swap cache has had the last reference that are `whose`. They are not told again until then.
    pub(crate) fn take_unmapped(&self, whose: impl Fn(&Pfn) -> bool) -> BTreeSet<Pfn> {
        let mut unmapped = self.unmapped.lock();
        let (taken, left) = std::mem::take(&mut *unmapped).into_iter().partition(whose);
        *unmapped = left;
        taken
    }
}
