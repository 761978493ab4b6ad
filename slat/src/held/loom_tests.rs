//! A held frame, and invalidations whose host reuses the old frame.

use super::*;
use crate::active::Active;
use crate::addr::Span;
use crate::loom_tests::{UnsafeCell, explore_within, thread};
use crate::slots::watched::Watched;
use crate::slots::{Slot, SlotId, SpaceId};
use crate::sync::barrier::Barrier;
use crate::sync::prim::{AtomicU64, Relaxed};
use std::sync::Arc;

const GFN: Gfn = Gfn(0);
const HVA: Hva = Hva(0x1000);

struct Shared {
    holds: Holds,
    active: Active,
    /// The host's frame of the page.
    frame: AtomicU64,
    frames: [UnsafeCell<u64>; 2],
}

impl Shared {
    fn new() -> Arc<Self> {
        let frames = [UnsafeCell::new(0), UnsafeCell::new(0)];
        Arc::new(Self { holds: Holds::new(), active: Active::new(), frame: AtomicU64::new(0), frames })
    }

    fn claim(&self) -> &HoldCell {
        let held = HeldAs { space: SpaceId(0), gfn: GFN, write: false, hardware: false };
        self.holds.claim(held).expect("there is memory")
    }

    /// Asks for the frame once.
    fn ask(&self, cell: &HoldCell) -> Option<usize> {
        let start = self.active.epoch();
        let slot = Slot::new(SlotId(0), GFN, 1, HVA);
        let sought = start.find(Wanted::new(GFN, Access::Read), |_| Some(slot)).ok()?;
        let watched = Watched::default();
        let stamp =
            |sought: Sought| sought.stamp((&self.active, &watched), (Level::K4, Level::K4), Word::OLDEST);
        let host = |_| Ok::<_, ()>(self.frame.load(Relaxed) as usize);
        asked((&self.holds, cell), sought, stamp, host).ok()?.ok()
    }

    /// Uses the frame that was found, if it is valid.
    fn use_once(&self, cell: &HoldCell, frame: usize) {
        if cell.begin(Barrier::symmetric()) {
            self.frames[frame].with(|page| {
                // SAFETY: the reuse of the frame is what loom checks against.
                unsafe { *page }
            });
            cell.end();
        }
    }

    /// An invalidation of the page, which the host moves.
    fn invalidate(&self) {
        let hvas = Span::sized(HVA, 0x1000);
        let ticket = self.active.begin(Span::new(Gfn(0), Gfn(0)), hvas);
        if !self.holds.is_empty() && self.holds.withdraw(Some(hvas), |_, hva| hvas.contains(hva)).any {
            self.holds.outlast(Barrier::symmetric());
        }
        ticket.flushed();
        self.frame.store(1, Relaxed);
        self.reuse();
        drop(ticket);
    }

    /// The host reuses the old frame.
    fn reuse(&self) {
        self.frames[0].with_mut(|page| {
            // SAFETY: as above.
            unsafe { *page = 1 }
        });
    }
}

/// One thread asks for the frame and uses it while the host moves its page.
fn asks() {
    let shared = Shared::new();
    let theirs = shared.clone();
    let host = thread::spawn(move || theirs.invalidate());
    let cell = shared.claim();
    if let Some(frame) = shared.ask(cell) {
        shared.use_once(cell, frame);
    }
    host.join().expect("it ends");
}

/// One thread uses a held frame while the host moves its page.
fn uses() {
    let shared = Shared::new();
    let cell = shared.claim();
    let frame = shared.ask(cell).expect("nothing covers it");
    let theirs = shared.clone();
    let host = thread::spawn(move || theirs.invalidate());
    shared.use_once(cell, frame);
    shared.use_once(cell, frame);
    host.join().expect("it ends");
}

/// As [`uses`], but another invalidation has taken the frame back, and flushes later.
fn uses_beside_two() {
    let shared = Shared::new();
    let cell = shared.claim();
    let frame = shared.ask(cell).expect("nothing covers it");
    let [theirs, others] = [0, 1].map(|_| shared.clone());
    let hvas = Span::sized(HVA, 0x1000);
    let take = move |shared: &Shared| shared.holds.withdraw(Some(hvas), |_, hva| hvas.contains(hva)).any;
    let first = thread::spawn(move || assert!(take(&others)));
    let second = thread::spawn(move || {
        if take(&theirs) {
            theirs.holds.outlast(Barrier::symmetric());
        }
        theirs.reuse();
    });
    shared.use_once(cell, frame);
    first.join().expect("it ends");
    second.join().expect("it ends");
}

#[test]
fn a_hold_is_found_by_an_invalidation_or_finds_it() {
    explore_within(3, asks);
}

#[test]
fn a_use_is_over_before_the_host_uses_the_frame_again() {
    explore_within(3, uses);
    explore_within(2, uses_beside_two);
}
