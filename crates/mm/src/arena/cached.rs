//! Frames on their way to swap, and frames in the swap cache ([`crate::swap`]).

use super::{Arena, CACHED, LEAVING};
use slat::Pfn;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

impl Arena {
    /// Marks a frame as leaving, unless it is; returns whether this call did. The caller has a reference to the
    /// frame, and ends the mark with `end_leaving`.
    // ORDER(leaving): Relaxed: a thread that starts the same on the same entry holds the same page lock.
    pub(crate) fn begin_leaving(&self, pfn: Pfn) -> bool {
        self.states()[pfn.0 as usize].fetch_or(LEAVING, Relaxed) & LEAVING == 0
    }

    /// Whether the frame is marked as leaving.
    pub(crate) fn is_leaving(&self, pfn: Pfn) -> bool {
        self.states()[pfn.0 as usize].load(Relaxed) & LEAVING != 0
    }

    /// Ends the mark of `begin_leaving`.
    pub(crate) fn end_leaving(&self, pfn: Pfn) {
        self.states()[pfn.0 as usize].fetch_and(!LEAVING, Relaxed);
    }

    /// Records that the swap cache has a reference to the frame, or is about to drop it. The caller holds the
    /// cache's lock.
    pub(crate) fn set_cached(&self, pfn: Pfn, cached: bool) {
        let state = &self.states()[pfn.0 as usize];
        if cached {
            state.fetch_or(CACHED, Relaxed);
        } else {
            state.fetch_and(!CACHED, Relaxed);
            self.unmapped.lock().remove(&pfn);
        }
    }

    /// Whether the swap cache holds the frame. A hint without the cache's lock.
    pub(crate) fn is_cached(&self, pfn: Pfn) -> bool {
        self.states()[pfn.0 as usize].load(Relaxed) & CACHED != 0
    }

    /// Returns how often a reference was dropped while the frame had others. Such a frame may have become
    /// evictable.
    pub(crate) fn unshared(&self) -> u64 {
        self.unshared.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// Takes the frames that match `whose` from those that only the swap cache held. A frame is recorded again
    /// when it next comes to that.
    pub(crate) fn take_unmapped(&self, whose: impl Fn(&Pfn) -> bool) -> BTreeSet<Pfn> {
        let mut unmapped = self.unmapped.lock();
        let (taken, left) = std::mem::take(&mut *unmapped).into_iter().partition(whose);
        *unmapped = left;
        taken
    }
}
