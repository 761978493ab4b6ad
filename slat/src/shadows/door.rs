//! The door of a shadow: threads that walk it for no vCPU of its own, or one that takes its tables apart.
//!
//! Faults of L2 need not pass: their vCPU holds the shadow, and one that a vCPU holds is not taken apart but by that vCPU. Invalidations,
//! aging passes and flushes for all vCPUs come from elsewhere. A thread that finds the door closed walks nothing: all that is behind it
//! goes, no vCPU runs on it, and no fault fills it before it is open.

use crate::sync::prim::{AcqRel, Acquire, AtomicU64, Relaxed, Release};

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Door(AtomicU64);

const CLOSED: u64 = 1 << 63;

/// A walk.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Door);

/// No walk is inside, and none begins.
#[derive(Debug)]
pub(crate) struct Closed<'a>(&'a Door);

impl Door {
    /// For a walk, unless it is closed.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        let inside = Inside(self);
        // ORDER(door): Acquire pairs with the Release of `Closed`: the tables as they are since.
        let before = self.0.fetch_add(1, unless_seeded!(DoorRelaxed, Acquire));
        (before & CLOSED == 0 || seeded!(DoorBelieved)).then_some(inside)
    }

    /// Unless a walk is inside.
    pub(crate) fn close(&self) -> Option<Closed<'_>> {
        // ORDER(door): Acquire pairs with the Release of `Inside`: its accesses are over.
        let closed = self.0.compare_exchange(0, CLOSED, AcqRel, Relaxed).is_ok();
        closed.then(|| Closed(self))
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // ORDER(door): Release, for `close`.
        self.0.0.fetch_sub(1, Release);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        // ORDER(door): Release, for `enter`.
        self.0.0.fetch_and(!CLOSED, Release);
    }
}
