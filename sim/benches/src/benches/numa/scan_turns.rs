//! Who scans when, and what the VM is told.

use super::guest_pages::{GuestPages, PAGES, runs};
use crate::benches::Policy;
use crate::benches::machine::{Machine, gfns};
use crate::host::{hva_of, hvas_of};
use crate::world::{self, AtomicU64, Ordering};
use core::sync::atomic::{self, AtomicBool, Ordering::Relaxed};
use slat::{Event, Gfn, Idle, SecondaryMmu, Span, Why};

/// What it takes to look at an entry of the host's table.
const LOOK_NS: u64 = 5;

/// All scans of a run, one after the other.
#[derive(Default)]
pub struct ScanTurns {
    turn: Turn,
    /// Of every page, whether its scan is over: in atomics that cost nothing, as what follows.
    over: Vec<AtomicBool>,
    /// GuestPages, runs or ranges that the VM was told of.
    calls: atomic::AtomicU64,
    /// What all took, in nanoseconds.
    ns: atomic::AtomicU64,
}

/// Twice the number of scans that are over, and one more during a scan. On lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Turn(AtomicU64);

impl ScanTurns {
    /// Of so many ranges.
    pub fn new(ranges: u64) -> Self {
        Self { over: (0..ranges * PAGES).map(|_| AtomicBool::new(false)).collect(), ..Self::default() }
    }

    /// Whether all are over.
    pub fn are_over(&self) -> bool {
        // ORDER(scans): Acquire pairs with the Release in `scan`: who goes round once more finds what was taken away.
        self.turn.0.load(Ordering::Acquire) == 2 * self.over.len() as u64 / PAGES
    }

    /// Whether that of this page is.
    pub fn is_over_for(&self, gfn: Gfn) -> bool {
        self.over[gfn.0 as usize].load(Relaxed)
    }

    /// GuestPages, runs or ranges that the VM was told of; nanoseconds of all scans.
    pub fn counted(&self) -> [u64; 2] {
        [&self.calls, &self.ns].map(|count| count.load(Relaxed))
    }

    /// ScanTurns the next range, unless a scan runs, or the one that is next is not `due`.
    pub fn scan_if_due(&self, idle: &mut Idle, due: u64, how: (&Machine, &GuestPages, Policy)) {
        let turn = self.turn.0.load(Ordering::Relaxed);
        let range = turn / 2;
        let free = turn.is_multiple_of(2) && range < due.min(self.over.len() as u64 / PAGES);
        // ORDER(scans): Acquire pairs with the Release below: one scan after the other.
        let claim = || self.turn.0.compare_exchange(turn, turn + 1, Ordering::Acquire, Ordering::Relaxed);
        if !free || claim().is_err() {
            return;
        }
        let began = world::now();
        world::compute(PAGES * LOOK_NS);
        let span = GuestPages::of(range);
        self.calls.fetch_add(tell(idle, span, how), Relaxed);
        for gfn in gfns(span) {
            self.over[gfn.0 as usize].store(true, Relaxed);
        }
        self.ns.fetch_add(world::now() - began, Relaxed);
        // ORDER(scans): Release, as above.
        self.turn.0.store(2 * (range + 1), Ordering::Release);
    }
}

/// Makes the pages of a range inaccessible that are to be, and tells the VM: how often.
fn tell(idle: &mut Idle, span: Span<Gfn>, (vm, pages, policy): (&Machine, &GuestPages, Policy)) -> u64 {
    let hinted = |gfn: Gfn| pages.is_hinted(gfn);
    let (why, told_of) = match policy {
        Policy::Range => (Why::Clear, Vec::new()),
        Policy::RangeYielding => (Why::Numa, runs(span, |_| true, 1)),
        Policy::Page => (Why::Numa, runs(span, hinted, 1)),
        _ => (Why::Numa, runs(span, hinted, PAGES)),
    };
    let ends = told_of.first().zip(told_of.last()).map(|(first, last)| Span::new(first.start, last.end));
    let announced = if policy == Policy::PageBatched { ends.unwrap_or(span) } else { span };
    let told = vm.around(idle, Event::new(hvas_of(announced), why), &mut |idle, told| {
        for gfn in gfns(span).filter(|&gfn| hinted(gfn)) {
            vm.host().hide(hva_of(gfn), pages.page(gfn));
        }
        for &run in &told_of {
            told.changed(idle, hvas_of(run), None);
            if policy != Policy::PageBatched {
                told.flush(idle);
            }
        }
    });
    debug_assert!(told.is_ok(), "it may block");
    if matches!(policy, Policy::Range | Policy::RangeYielding) { 1 } else { told_of.len() as u64 }
}
