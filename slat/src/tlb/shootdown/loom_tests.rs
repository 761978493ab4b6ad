//! Loom tests of a vCPU that enters the guest, and a flusher that reuses the page of its translations.

use super::*;
use crate::loom_tests::{RACE, UnsafeCell, explore, explore_within, finds, thread};
use crate::sync::prim::{AcqRel, Acquire, Release, fence};
use std::sync::Arc;

/// Whether the one translation is cached.
struct Cached(bool);

impl Translations for Cached {
    fn flush_all(&mut self) {
        self.0 = false;
    }
    fn flush(&mut self, gfns: Span<Gfn>) {
        self.0 &= !gfns.contains(Gfn(7));
    }
}

struct Shared {
    tlb: Tlb,
    /// Whether the page is mapped.
    entry: AtomicU64,
    page: UnsafeCell<u64>,
}

impl Shared {
    fn new() -> Self {
        Self { tlb: Tlb::new(1), entry: AtomicU64::new(1), page: UnsafeCell::new(0) }
    }

    /// Makes a guest access.
    fn access(&self, cached: &mut Cached) {
        cached.0 |= self.entry.load(Relaxed) == 1;
        if cached.0 {
            self.page.with(|page| {
                // SAFETY: loom checks that the page is not reused.
                unsafe { *page }
            });
        }
    }

    fn unmap_and_reuse(&self, flush: bool) {
        self.entry.store(0, Relaxed);
        if flush {
            let pages = self.tlb.shoot_down(Span::new(Gfn(7), Gfn(8)), Unlinked::default(), |_| {});
            drop(pages);
        }
        self.page.with_mut(|page| {
            // SAFETY: as above.
            unsafe { *page = 1 }
        });
    }
}

/// Enters the guest twice, and answers during the second time. There were `before` flushes before.
fn enters(flush: bool, before: u64) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new(Shared::new());
        shared.tlb.generation.store(before, Relaxed);
        let theirs = shared.clone();
        let vcpu = thread::spawn(move || {
            let (tlb, mut cached) = (&theirs.tlb, Cached(true));
            let vcpu = tlb.vcpu(VcpuId(0));
            for answers in [false, true] {
                tlb.enter(vcpu, &mut cached);
                theirs.access(&mut cached);
                if answers && Tlb::kicked(vcpu) {
                    tlb.catch_up(vcpu, &mut cached);
                    theirs.access(&mut cached);
                }
                Tlb::leave(vcpu);
            }
        });
        shared.unmap_and_reuse(flush);
        vcpu.join().expect("the vCPU ends");
    }
}

#[test]
fn a_page_is_reused_only_when_no_vcpu_can_reach_it() {
    explore_within(3, enters(true, 0));
}

#[test]
fn a_vcpu_that_is_far_behind_forgets_everything() {
    explore_within(2, enters(true, CATCH_UP));
}

#[test]
fn mistake_reuse_without_a_shootdown() {
    assert!(finds(RACE, enters(false, 0)));
}

/// A vCPU answers a kick, if it sees one.
fn kicks() {
    let tlb = Arc::new(Tlb::new(1));
    let theirs = tlb.clone();
    let vcpu = thread::spawn(move || {
        let (vcpu, mut cached) = (theirs.vcpu(VcpuId(0)), Cached(true));
        theirs.enter(vcpu, &mut cached);
        if Tlb::kicked(vcpu) {
            theirs.catch_up(vcpu, &mut cached);
            assert_eq!(vcpu.seen.load(Relaxed), 1, "a kick is cleared, and its flush not carried out");
        }
        Tlb::leave(vcpu);
    });
    drop(tlb.shoot_down(Span::new(Gfn(7), Gfn(8)), Unlinked::default(), |_| {}));
    vcpu.join().expect("the vCPU ends");
}

/// A vCPU enters the guest and stays, beside a flush that waits for no answer.
#[test]
fn a_vcpu_that_is_asked_to_flush_does_so_soon() {
    explore(|| {
        let tlb = Arc::new(Tlb::new(1));
        let theirs = tlb.clone();
        let enters = thread::spawn(move || theirs.enter(theirs.vcpu(VcpuId(0)), &mut Cached(true)));
        tlb.ask((Span::new(Gfn(7), Gfn(8)), false), |_| {});
        enters.join().expect("it enters");
        let vcpu = tlb.vcpu(VcpuId(0));
        assert!(Tlb::kicked(vcpu) || vcpu.seen.load(Relaxed) == 1, "not asked");
    });
}

#[test]
fn a_kick_brings_its_flush() {
    explore_within(3, kicks);
}

/// A vCPU on hardware, whose processor takes interrupts until they are blocked. An interrupt taken there brings no
/// guest out.
fn interrupts() {
    let shared = Arc::new((Tlb::new(1), AtomicBool::new(false)));
    let theirs = shared.clone();
    let vcpu = thread::spawn(move || {
        let (tlb, pending) = &*theirs;
        let (vcpu, mut cached) = (tlb.vcpu(VcpuId(0)), Cached(true));
        loop {
            tlb.enter(vcpu, &mut cached);
            // The last interrupt that is taken.
            let taken = Tlb::go(vcpu, || pending.swap(false, AcqRel)).ok();
            if taken == Some(true) {
                assert_eq!(vcpu.seen.load(Relaxed), 1, "a kick is lost: its flush is not carried out");
            }
            // The guest runs until the next interrupt, or until its own exit.
            Tlb::leave(vcpu);
            if taken.is_some() {
                return;
            }
        }
    });
    let (tlb, pending) = &*shared;
    let interrupt = |_| pending.store(true, Release);
    drop(tlb.shoot_down(Span::new(Gfn(7), Gfn(8)), Unlinked::default(), interrupt));
    vcpu.join().expect("the vCPU ends");
}

#[test]
fn no_kick_is_lost_before_the_hardware_enters() {
    explore_within(3, interrupts);
}

/// A root, and a page that only the old root, 0, leads to.
struct Roots {
    tlb: Tlb,
    root: AtomicU64,
    page: UnsafeCell<u64>,
}

/// Replaces a root beside another flusher, which takes away the page that only the old root leads to.
fn broadcasts() {
    let tlb = Tlb::new(1);
    let shared = Arc::new(Roots { tlb, root: AtomicU64::new(0), page: UnsafeCell::new(0) });
    let gfns = Span::new(Gfn(7), Gfn(8));
    shared.tlb.enter(shared.tlb.vcpu(VcpuId(0)), &mut Cached(false));
    let theirs = shared.clone();
    let vcpu = thread::spawn(move || {
        let Roots { tlb, root, page } = &*theirs;
        let (vcpu, mut loaded) = (tlb.vcpu(VcpuId(0)), 0);
        if Tlb::kicked(vcpu) {
            tlb.catch_up(vcpu, &mut Cached(false));
            loaded = root.load(Acquire);
        }
        if loaded == 0 {
            page.with(|page| {
                // SAFETY: loom checks that the page is not reused.
                unsafe { *page }
            });
        }
        Tlb::leave(vcpu);
    });
    let theirs = shared.clone();
    let flip = thread::spawn(move || {
        let Roots { tlb, root, .. } = &*theirs;
        let replaces = tlb.replaces_root();
        root.store(1, Release);
        drop(tlb.shoot_down(gfns, Unlinked::default(), |_| {}));
        drop(replaces);
    });
    let Roots { tlb, root, page } = &*shared;
    // Nothing is cached, so the broadcast itself does nothing. If there were none, this flusher would kick.
    if root.load(Acquire) == 1 && tlb.is_broadcast(|| true) {
        page.with_mut(|page| {
            // SAFETY: as above.
            unsafe { *page = 1 }
        });
    }
    flip.join().expect("the root is replaced");
    vcpu.join().expect("the vCPU ends");
}

#[test]
fn a_broadcast_leaves_no_vcpu_on_an_old_root() {
    explore_within(2, broadcasts);
}

/// Two flushers, each with a round of the ring: a number of one shares a cell with a number of the other.
fn share_a_cell(number: fn(&Tlb, Span<Gfn>, bool) -> u64) -> impl Fn() + Send + Sync + 'static {
    move || {
        let tlb = Arc::new(Tlb::new(1));
        let flusher = |first: u64| {
            let (tlb, gfns) = (tlb.clone(), Span::new(Gfn(first), Gfn(first + 1)));
            thread::spawn(move || {
                (0..RING).map(|_| (number(&tlb, gfns, false), (gfns, false))).collect::<Vec<_>>()
            })
        };
        let flushers = [flusher(1), flusher(7)];
        let found: Vec<_> = (1..=2 * RING).map(|generation| (generation, tlb.range_of(generation))).collect();
        let written = flushers.map(|flusher| flusher.join().expect("it ends")).concat();
        for (generation, range) in found {
            let right = range.is_none_or(|range| written.contains(&(generation, range)));
            assert!(right, "a range that is not the flush's");
        }
    }
}

#[test]
fn a_range_is_never_taken_for_another() {
    explore_within(3, share_a_cell(Tlb::number));
}

#[test]
fn mistake_two_writers_in_one_cell() {
    fn number(tlb: &Tlb, gfns: Span<Gfn>, _: bool) -> u64 {
        let generation = tlb.generation.fetch_add(1, AcqRel) + 1;
        let ranged = &tlb.ring[0];
        ranged.generation.store(0, Relaxed);
        fence(Release);
        ranged.start.store(gfns.start.raw(), Relaxed);
        ranged.end.store(gfns.end.raw(), Relaxed);
        ranged.generation.store(generation, Release);
        generation
    }
    assert!(finds("not the flush's", share_a_cell(number)));
}
