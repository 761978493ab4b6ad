//! L1's frames that only L2 uses: an aging pass over L1's memory finds them.

use super::computed::{BASE, Computed, Contents, RIGHTS};
use crate::nested::*;
use crate::notify::{SecondaryMmu, Young};
use crate::table::formats::{Ept4, Ept4NoAd};
use crate::*;
use std::vec::Vec;

const LARGE: u64 = 512;
/// L1's tables, by frame: 1 links 2, 2 links 3, and 3 links 4 and maps 2 MiB. Table 4 maps L2's frames to those from
/// here on.
const DATA: u64 = 64;

struct Flat;

impl Contents for Flat {
    const LARGE_FROM: u64 = LARGE;

    fn word(&self, page: u64, nth: u64) -> u64 {
        match (page, nth) {
            (1..=3, 0) => (page + 1) << 12 | 7,
            (3, 1) => LARGE << 12 | 1 << 7 | RIGHTS,
            (4, _) => (DATA + nth) << 12 | RIGHTS,
            _ => 0,
        }
    }
}

struct Aged<F: Format> {
    idle: Idle,
    vm: Vm<F, Computed<Flat>>,
}

impl<F: Format> Aged<F> {
    fn new() -> Self {
        let mut idle = Idle::take().unwrap();
        let vm = Vm::<F, _>::builder(Computed(Flat)).build().unwrap();
        let slot = Slot::new(SlotId(0), Gfn(0), 2 * LARGE, BASE);
        vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
        Self { idle, vm }
    }

    /// L2 accesses frames, each time by a fault.
    fn touches(&mut self, g2s: &[u64]) -> Vec<bool> {
        let ept = EptTable::new(1 << 12 | 3 << 3 | 6, EptFeatures::of(46)).unwrap();
        let mut vcpu = self.vm.vcpu(VcpuId(0)).unwrap();
        let mut l2 = vcpu.nested(&mut self.idle, ept).unwrap();
        let mut touch = |&g2: &u64| {
            let done = l2.fault(&mut self.idle, L1Access::new(Gfn(g2).gpa(), Access::Read)).unwrap();
            matches!(done, L2Next::Handled { next: Next::Resume(Resume::Mapped(_)), .. })
        };
        g2s.iter().map(&mut touch).collect()
    }

    /// Returns the frames of L1 that were accessed, asked by guest frames and by host addresses in turns.
    fn ages(&mut self, by_hva: bool) -> Vec<u64> {
        let mut young = Vec::new();
        if by_hva {
            let all = Span::sized(BASE, 2 * LARGE * PAGE_SIZE);
            let frame = |hva: Hva| (hva.0 - BASE.0) >> PAGE_SHIFT;
            self.vm.age(&mut self.idle, all, &mut |seen| young.extend(seen.pages().map(frame)));
        } else {
            let all = Span::new(Gfn(0), Gfn(1 << F::FRAME_BITS));
            self.vm
                .memory()
                .lockless(&mut self.idle)
                .age(all, |seen| young.extend(seen.pages().map(|gfn| gfn.0)));
        }
        young
    }
}

fn frames_of_l2_are_told_once<F: Format>(by_hva: bool) {
    let mut aged = Aged::<F>::new();
    assert!(aged.ages(by_hva).is_empty());
    assert_eq!(aged.touches(&[3, 9]), [true; 2]);
    // L1's own mappings, of one of them and of a frame between: reported in order, and once. If walkers set bits in
    // links, none is set here: L1's links then say that nothing below was accessed, which says nothing about L2.
    let mut vcpu = aged.vm.vcpu(VcpuId(0)).unwrap();
    for frame in [DATA + 9, DATA + 5] {
        let _ = vcpu.fault(&mut aged.idle, Fault { gpa: Gfn(frame).gpa(), access: Access::Read }).unwrap();
    }
    drop(vcpu);
    let all = [DATA + 3, DATA + 5, DATA + 9];
    let told = all.iter().copied().filter(|&frame| !F::HARDWARE_AD || frame != DATA + 5);
    assert_eq!(aged.ages(by_hva), told.collect::<Vec<_>>());
    assert!(aged.ages(by_hva).is_empty());
    let large = aged.touches(&[LARGE + 7]);
    assert_eq!(large, [true]);
    assert_eq!(aged.ages(by_hva), (LARGE..2 * LARGE).collect::<Vec<_>>());
    assert!(aged.ages(by_hva).is_empty());
}

#[test]
fn an_aging_pass_finds_what_l2_has_accessed() {
    for by_hva in [false, true] {
        frames_of_l2_are_told_once::<Ept4>(by_hva);
        frames_of_l2_are_told_once::<Ept4NoAd>(by_hva);
    }
}

/// Whether one page is young; the pass also asks L2.
#[test]
fn one_page_that_l2_uses_is_young() {
    let mut aged = Aged::<Ept4>::new();
    aged.touches(&[3]);
    let page = |frame: u64| Span::sized(BASE + (frame << PAGE_SHIFT), PAGE_SIZE);
    let Aged { idle, vm } = &mut aged;
    let mut young = |frame, young| SecondaryMmu::young(&*vm, idle, page(frame), young);
    assert!(young(DATA + 3, Young::Test) && !young(DATA + 4, Young::Test));
    assert!(young(DATA + 3, Young::ClearAndFlush));
    assert!(!young(DATA + 3, Young::Test));
}

/// Without Accessed bits a pass withdraws the leaf, and the next access restores it at once, as young.
#[test]
fn a_leaf_that_an_aging_pass_withdrew_comes_back() {
    let mut aged = Aged::<Ept4NoAd>::new();
    aged.touches(&[3]);
    assert_eq!(aged.ages(false), [DATA + 3]);
    assert_eq!(aged.touches(&[3]), [true]);
    assert_eq!(aged.ages(false), [DATA + 3]);
}

#[test]
fn a_leaf_that_an_aging_pass_withdrew_is_mapped_and_not_accessed() {
    let mut aged = Aged::<Ept4NoAd>::new();
    aged.touches(&[3]);
    assert_eq!(aged.ages(false), [DATA + 3]);
    let ept = EptTable::new(1 << 12 | 3 << 3 | 6, EptFeatures::of(46)).unwrap();
    let mut vcpu = aged.vm.vcpu(VcpuId(0)).unwrap();
    let l2 = vcpu.nested(&mut aged.idle, ept).unwrap();
    let leaf = l2.translate(Gpa(3 << 12)).unwrap();
    assert_eq!(
        (leaf.accessed, leaf.pfn),
        (false, Computed(Flat).lookup(BASE + ((DATA + 3) << 12), Access::Read).unwrap().pfn)
    );
    assert_eq!(l2.translate(Gpa(4 << 12)), None);
}
