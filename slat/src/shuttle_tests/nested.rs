//! Faults of nested guests during changes by the host, and during L1's stores and flushes.
//!
//! The host uses each frame once: a dead frame stays dead. A vCPU in L2 has a TLB of one entry, which it keeps until a
//! flush. Each use is checked against the frames that are dead at that moment, and against L1's table since the vCPU's
//! last flush.

use super::schedules::explore;
use super::vm_on_host::{at_once, idle};
use crate::nested::*;
use crate::sync::prim::{AtomicU64, Relaxed, quiet, step};
use crate::table::Word;
use crate::table::formats::Npt4;
use crate::*;

const DEAD: &str = "L2 uses a frame that the host has taken back";
const OLD: &str = "L2 uses what L1 has flushed";
const BASE: u64 = 0x10_0000;
/// L1's frames 8 and 9; the first frames of the host behind them.
const DATA: u64 = 8;
const FRAMES: u64 = 16;
const PAGES: u64 = 2;

/// L1's table, and the host frames of two frames of L1.
struct Small {
    /// The leaf for L2's frame 0. Those for L2's other frames name L1's frames in turn.
    t: AtomicU64,
    frames: [AtomicU64; PAGES as usize],
    /// Number of frames that the host has given out; then those that it has taken back.
    given: AtomicU64,
    dead: AtomicU64,
}

impl Host for Small {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        let page = (hva.0 - BASE >> 12) - DATA;
        Some(HostPage { pfn: Pfn(self.frames[page as usize].load(Relaxed)), ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }

    /// Frames 0 to 2 link the next; frame 3 has the leaf.
    fn read(&self, hva: Hva) -> Option<Word> {
        let page = hva.0 - BASE >> 12;
        Some(Word(match (page, hva.0 & 0xfff) {
            (3, 0) => self.t.load(Relaxed),
            (3, place) => t(place / 8 % PAGES),
            _ => (page + 1) << 12 | 7,
        }))
    }
}

struct Nest {
    vm: Vm<Npt4, Small>,
}

/// T's entry for L1's frame `page`.
fn t(page: u64) -> u64 {
    (DATA + page) << 12 | 6 << 3 | 7
}

fn table() -> EptTable {
    EptTable::new(3 << 3 | 6, EptFeatures::of(46)).expect("a pointer that VM entry takes")
}

struct One(Option<(Pfn, bool)>);

impl Translations for &mut One {
    fn flush_all(&mut self) {
        self.0 = None;
    }
    fn flush(&mut self, _: Span<Gfn>) {}
}

impl Nest {
    fn new(vcpus: u32) -> Self {
        let frames = core::array::from_fn(|page| AtomicU64::new(FRAMES + page as u64));
        let host = Small {
            t: AtomicU64::new(t(0)),
            frames,
            given: AtomicU64::new(FRAMES + PAGES),
            dead: AtomicU64::new(0),
        };
        let vm = Vm::<Npt4, _>::builder(host).vcpus(vcpus).build().expect("there is memory");
        let mut idle = Idle::take().expect("one on each thread");
        let slot = Slot::new(SlotId(0), Gfn(0), DATA + PAGES, Hva(BASE));
        vm.memory().commit(&mut idle, |tx| tx.create(slot)).expect("a good slot");
        Self { vm }
    }

    /// Links the tables, without a mapping or a hint.
    fn linked(self) -> Self {
        self.guest(0, 1, None);
        self.moves(0);
        self
    }

    /// A vCPU loads from L2's frame 0, `loads` times. If L1 has flushed, its table maps `page` since then.
    fn guest(&self, id: u32, loads: u32, flushes: Option<u64>) {
        idle(|idle| {
            let host = self.vm.host();
            let mut vcpu = self.vm.vcpu(VcpuId(id)).expect("it is free");
            if let Some(page) = flushes {
                vcpu.nested(idle, table()).expect("there is memory");
                host.t.store(t(page), Relaxed);
                vcpu.l1_flushes(|_: &EptTable| true);
            }
            let mut tlb = One(None);
            let mut l2 = vcpu.nested(idle, table()).expect("there is memory");
            let mut left = loads;
            while left > 0 {
                let shadow = l2.shadow;
                let mut guest = l2.enter(idle, &mut &mut tlb).poll();
                // SAFETY: nothing is unlinked from this shadow.
                let at = unsafe { shadow.radix.descend(self.vm.tables(), Gfn(0)) };
                if tlb.0.is_none() && Npt4::is_present(at.word) {
                    tlb.0 = Some((Npt4::pfn(at.word), true));
                }
                while let (Some((pfn, _)), true) = (tlb.0, left > 0) {
                    let dead = quiet(&host.dead).load(Relaxed) >> pfn.0 & 1 != 0;
                    assert!(!dead, "{DEAD}");
                    if let Some(page) = flushes {
                        let other = quiet(&host.frames[1 - page as usize]).load(Relaxed);
                        assert_ne!(pfn.0, other, "{OLD}");
                    }
                    left -= 1;
                    step();
                    if guest.kicked() {
                        guest.answer(&mut &mut tlb);
                    }
                }
                drop(guest);
                if left > 0 {
                    let done = l2.fault(idle, L1Access::new(Gpa(0), Access::Read));
                    assert!(matches!(done, Ok(L2Next::Handled { .. })), "{done:?}");
                }
            }
        });
    }

    /// A vCPU loads once from L2's frame `g2`.
    fn touch(&self, id: u32, g2: u64) {
        idle(|idle| {
            let mut vcpu = self.vm.vcpu(VcpuId(id)).expect("it is free");
            let mut l2 = vcpu.nested(idle, table()).expect("there is memory");
            let done = l2.fault(idle, L1Access::new(Gfn(g2).gpa(), Access::Read));
            assert!(
                matches!(done, Ok(L2Next::Handled { next: Next::Resume(Resume::Mapped(_)), .. })),
                "{done:?}"
            );
        });
    }

    /// Whether the shadow maps L2's frame `g2`.
    fn maps(&self, g2: u64) -> bool {
        idle(|idle| {
            let mut vcpu = self.vm.vcpu(VcpuId(0)).expect("it is free");
            let l2 = vcpu.nested(idle, table()).expect("there is memory");
            l2.translate(Gfn(g2).gpa()).is_some()
        })
    }

    /// The host moves a page to a new frame.
    fn moves(&self, page: u64) {
        let host = self.vm.host();
        let change = self.vm.invalidate(Span::sized(Hva(BASE + (DATA + page << 12)), 4096), Reason::Migrate);
        let change = idle(|idle| change.apply(idle).settle());
        step();
        // One change of a page at a time.
        let new = quiet(&host.given).fetch_add(1, Relaxed);
        let old = quiet(&host.frames[page as usize]).swap(new, Relaxed);
        quiet(&host.dead).fetch_or(1 << old, Relaxed);
        step();
        drop(change);
    }
}

/// A page moves while two vCPUs run the same L2 on it.
fn moving() {
    let nest = Nest::new(2);
    at_once(&[&|| nest.guest(0, 3, None), &|| nest.guest(1, 2, None), &|| nest.moves(0)]);
}

/// As [`moving`], with one vCPU, and tables that are linked.
fn moving_beside_one() {
    let nest = Nest::new(1).linked();
    at_once(&[&|| nest.guest(0, 3, None), &|| nest.moves(0)]);
}

/// The page moves twice at once.
fn moving_twice() {
    let nest = Nest::new(1).linked();
    at_once(&[&|| nest.guest(0, 4, None), &|| nest.moves(0), &|| nest.moves(0)]);
}

/// Two vCPUs enter hints, each for a frame of its own, and link the same tables for them. The frames have `before`
/// hints each. Then the host takes both frames back.
fn enter_hints(before: u64) {
    let nest = Nest::new(2);
    let before = before * PAGES;
    (0..before).for_each(|g2| nest.touch(0, g2));
    at_once(&[&|| nest.touch(0, before), &|| nest.touch(1, before + 1)]);
    (0..PAGES).for_each(|page| nest.moves(page));
    assert!((0..before + PAGES).all(|g2| !nest.maps(g2)), "{DEAD}");
}

/// Two vCPUs enter hints for one frame, which has `before` hints. Then the host takes it back.
fn enter_beside(before: u64) {
    let nest = Nest::new(2);
    (0..before).for_each(|nth| nest.touch(0, PAGES * nth));
    at_once(&[&|| nest.touch(0, PAGES * before), &|| nest.touch(1, PAGES * (before + 1))]);
    nest.moves(0);
    assert!((0..before + 2).all(|nth| !nest.maps(PAGES * nth)), "{DEAD}");
}

/// L1 maps another frame, and flushes on one vCPU, while the other vCPU faults on the old mapping.
fn flushing() {
    let nest = Nest::new(2);
    at_once(&[&|| nest.guest(0, 2, Some(1)), &|| nest.guest(1, 1, None)]);
}

#[test]
fn no_frame_that_the_host_took_back_is_used_by_l2() {
    explore(moving);
    explore(moving_beside_one);
}

#[test]
fn no_frame_that_the_host_took_back_twice_is_used_by_l2() {
    explore(moving_twice);
}

#[test]
fn hints_that_two_vcpus_enter_in_fresh_tables_are_found() {
    explore(|| enter_hints(0));
}

#[test]
fn hints_that_two_vcpus_enter_for_one_frame_are_found() {
    explore(|| enter_beside(0));
    explore(|| enter_beside(5));
    explore(|| enter_beside(6));
}

#[test]
fn nothing_that_l1_has_flushed_is_used_by_l2() {
    explore(flushing);
}
