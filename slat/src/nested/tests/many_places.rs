//! Frames of L1 that L2 has at many places: an invalidation and an aging pass find each of them, and no other leaf.

use super::computed::{BASE, Computed, Contents, RIGHTS};
use crate::nested::*;
use crate::sync::prim::{AtomicU64, Relaxed};
use crate::table::formats::{Ept4, Ept4NoAd};
use crate::*;
use std::vec::Vec;

const LARGE: u64 = 512;
/// L1's tables, by frame: 1 links 2, 2 links 3. The first entry of 3 links 4, the others map two pages of 2 MiB in
/// turns. Table 4 maps L2's first frames to those from here on.
const DATA: u64 = 8;

/// Table 4: for each of L2's frames a frame of L1 after `DATA`, and one more; 0 for none.
struct Aliases(Vec<AtomicU64>);

impl Contents for Aliases {
    const LARGE_FROM: u64 = LARGE;

    fn word(&self, page: u64, nth: u64) -> u64 {
        let leaf = |frame: u64| frame << 12 | RIGHTS;
        match (page, nth) {
            (1..=3, 0) => (page + 1) << 12 | 7,
            (3, _) => leaf(LARGE * (1 + nth % 2)) | 1 << 7,
            (4, _) => match self.0[nth as usize].load(Relaxed) {
                0 => 0,
                frame => leaf(DATA + frame - 1),
            },
            _ => 0,
        }
    }
}

struct World<F: Format> {
    idle: Idle,
    vm: Vm<F, Computed<Aliases>>,
}

impl<F: Format> World<F> {
    /// Of L2's first 480 frames, every third is L1's first frame, the others are frames of their own.
    fn new() -> Self {
        let frame = |g2: u64| match g2 {
            480.. => 0,
            _ if g2.is_multiple_of(3) => 1,
            _ => 1 + g2,
        };
        let mut idle = Idle::take().unwrap();
        let vm =
            Vm::<F, _>::builder(Computed(Aliases((0..512).map(|g2| AtomicU64::new(frame(g2))).collect())))
                .build()
                .unwrap();
        let slot = Slot::new(SlotId(0), Gfn(0), 3 * LARGE, BASE);
        vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
        Self { idle, vm }
    }

    /// L2 loads from its frames.
    fn touches(&mut self, g2s: impl IntoIterator<Item = u64>) {
        let mut vcpu = self.vm.vcpu(VcpuId(0)).unwrap();
        let mut l2 = vcpu.nested(&mut self.idle, ept()).unwrap();
        for g2 in g2s {
            let done = l2.fault(&mut self.idle, L1Access::new(Gfn(g2).gpa(), Access::Read));
            assert!(matches!(done, Ok(L2Next::Handled { .. })), "{done:?}");
        }
    }

    fn mapped(&mut self, g2s: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut vcpu = self.vm.vcpu(VcpuId(0)).unwrap();
        let l2 = vcpu.nested(&mut self.idle, ept()).unwrap();
        g2s.into_iter().filter(|&g2| l2.translate(Gfn(g2).gpa()).is_some()).collect()
    }

    fn moves(&mut self, frame: u64, frames: u64) {
        let page = Span::sized(BASE + (frame << PAGE_SHIFT), frames * PAGE_SIZE);
        drop(self.vm.invalidate(page, Reason::Migrate).apply(&mut self.idle).settle());
    }

    /// L1 maps its first frame at one frame of L2 only, and flushes.
    fn only_at(&mut self, g2: u64) {
        self.vm.host().0.0.iter().for_each(|entry| entry.store(0, Relaxed));
        self.vm.host().0.0[g2 as usize].store(1, Relaxed);
        self.vm.vcpu(VcpuId(0)).unwrap().l1_flushes(|_: &EptTable| true);
        self.touches([g2]);
    }

    fn block_pages(&self) -> u64 {
        self.vm.spaces[0].nested.get().unwrap().reverse.block_pages()
    }
}

fn ept() -> EptTable {
    EptTable::new(1 << 12 | 3 << 3 | 6, EptFeatures::of(46)).unwrap()
}

#[test]
fn an_invalidation_removes_the_leaves_of_its_frame_and_no_others() {
    let mut world = World::<Ept4>::new();
    world.touches(0..480);
    assert_eq!(world.mapped(0..480).len(), 480);
    world.moves(DATA, 1);
    let others: Vec<_> = (0..480).filter(|g2| g2 % 3 != 0).collect();
    assert_eq!(world.mapped(0..480), others);
    // And again, where there were hints before.
    world.touches(0..480);
    world.moves(DATA, 1);
    assert_eq!(world.mapped(0..480), others);
}

#[test]
fn an_invalidation_removes_the_large_leaves_of_its_page_and_no_others() {
    let mut world = World::<Ept4>::new();
    let all: Vec<_> = (1..7).map(|nth| nth * LARGE).collect();
    world.touches(all.iter().copied());
    // One frame of the page changes: each leaf is split.
    world.moves(LARGE + 5, 1);
    assert_eq!(world.mapped(all.iter().map(|g2| g2 + 5)).len(), 3);
    assert_eq!(world.mapped(all.iter().map(|g2| g2 + 6)).len(), 6);
    world.moves(LARGE, LARGE);
    let odd = all.iter().copied().filter(|g2| g2 / LARGE % 2 == 1);
    assert_eq!(world.mapped(all.iter().copied()), odd.collect::<Vec<_>>());
}

/// Whether an aging pass finds each access, by way of each place in turn.
fn young_at_each<F: Format>(moves: bool) {
    let mut world = World::<F>::new();
    for nth in 0..20 {
        if moves {
            world.only_at(nth);
        } else {
            world.touches([3 * nth]);
        }
        let mut young = Vec::new();
        let World { idle, vm } = &mut world;
        let all = Span::new(Gfn(0), Gfn(LARGE));
        vm.memory().lockless(idle).age(all, |seen| young.extend(seen.pages().map(|gfn| gfn.0)));
        assert_eq!(young, [DATA], "{nth}");
    }
}

#[test]
fn a_frame_is_young_by_each_of_its_places() {
    for moves in [false, true] {
        young_at_each::<Ept4>(moves);
        young_at_each::<Ept4NoAd>(moves);
    }
}

/// L1 moves a frame from one frame of L2 to the next. Returns the number of pages for hints.
fn moved_around() -> u64 {
    let mut world = World::<Ept4>::new();
    (0..470).for_each(|g2| world.only_at(g2));
    assert_eq!(world.mapped(0..480), [469]);
    let pages = world.block_pages();
    world.moves(DATA, 1);
    assert!(world.mapped(0..480).is_empty());
    pages
}

#[test]
fn hints_whose_leaves_are_gone_take_no_more_memory() {
    assert_eq!(moved_around(), 1);
}
