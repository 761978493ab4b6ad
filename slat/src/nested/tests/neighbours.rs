//! Pages that a fault maps beside the one that L2 accesses.

use super::computed::{BASE, Computed, Contents, RIGHTS};
use crate::nested::*;
use crate::table::formats::{Ept4, Ept4NoAd};
use crate::*;
use std::vec::Vec;

/// L1's tables, by frame: 1 links 2, 2 links 3, 3 links 4. Table 4 maps L2's frames to those from here on.
const DATA: u64 = 64;
const ACCESSED: u64 = 1 << 8;
const DIRTY: u64 = 1 << 9;
const WRITE: u64 = 1 << 1;
/// L2's frames with entries of T that differ from the others, which are writable, accessed and dirty.
const NOT_ACCESSED: u64 = 10;
const CLEAN: u64 = 11;
const NOT_PRESENT: u64 = 13;
const READ_ONLY: u64 = 14;

struct Flat;

impl Contents for Flat {
    fn word(&self, page: u64, nth: u64) -> u64 {
        let leaf = (DATA + nth) << 12 | RIGHTS | ACCESSED | DIRTY;
        match (page, nth) {
            (1..=3, 0) => (page + 1) << 12 | ACCESSED | 7,
            (4, NOT_ACCESSED) => leaf & !ACCESSED,
            (4, CLEAN) => leaf & !DIRTY,
            (4, NOT_PRESENT) => 0,
            (4, READ_ONLY) => leaf & !WRITE,
            (4, _) => leaf,
            _ => 0,
        }
    }
}

/// L2 stores to pages, as far as it finds none there. Returns the pages of the first 512 that it has afterwards.
fn mapped<F: Format>(idle: &mut Idle, vm: &Vm<F, Computed<Flat>>, stores: &[u64]) -> Vec<(u64, Leaf)> {
    let features = EptFeatures { accessed_dirty: true, ..EptFeatures::of(46) };
    let ept = EptTable::new(1 << 12 | 1 << 6 | 3 << 3 | 6, features).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let mut l2 = vcpu.nested(idle, ept).unwrap();
    for &g2 in stores {
        let done = l2.fault(idle, L1Access::new(Gfn(g2).gpa(), Access::Write)).unwrap();
        let is_mapped = matches!(done, L2Next::Handled { next: Next::Resume(Resume::Mapped(_)), .. });
        assert!(is_mapped, "{g2}: {done:?}");
    }
    (0..512).filter_map(|g2| Some((g2, l2.translate(Gfn(g2).gpa())?))).collect()
}

fn world<F: Format>(idle: &mut Idle) -> Vm<F, Computed<Flat>> {
    let vm = Vm::<F, _>::builder(Computed(Flat)).build().unwrap();
    vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 1024, BASE))).unwrap();
    vm
}

fn frames(mapped: &[(u64, Leaf)]) -> Vec<u64> {
    mapped.iter().map(|&(g2, _)| g2).collect()
}

#[test]
fn neighbours_are_mapped_as_far_as_t_stays_as_it_is() {
    let mut idle = Idle::take().unwrap();
    let vm = world::<Ept4>(&mut idle);
    let mapped = mapped(&mut idle, &vm, &[8, 9]);
    assert_eq!(frames(&mapped), [8, 9, 12, READ_ONLY, 15]);
    for (g2, leaf) in mapped {
        let has = (leaf.accessed, leaf.dirty, leaf.perms.allows(Access::Write));
        let touched = g2 <= 9;
        assert_eq!(has, (touched, touched, g2 != READ_ONLY), "{g2}");
        assert_eq!(
            Some(leaf.pfn),
            vm.host().lookup(BASE + ((DATA + g2) << 12), Access::Read).map(|page| page.pfn)
        );
    }
}

#[test]
fn an_aging_pass_takes_no_neighbour_for_young() {
    let mut idle = Idle::take().unwrap();
    let vm = world::<Ept4>(&mut idle);
    mapped(&mut idle, &vm, &[8, 9]);
    let (mut young, all) = (Vec::new(), Span::new(Gfn(0), Gfn(1024)));
    vm.memory().lockless(&mut idle).age(all, |seen| young.extend(seen.pages().map(|gfn| gfn.0)));
    assert_eq!(young, [DATA + 8, DATA + 9]);
    let vm = world::<Ept4NoAd>(&mut idle);
    assert_eq!(frames(&mapped(&mut idle, &vm, &[8, 9])), [8, 9], "a format that cannot tell");
}

#[test]
fn an_invalidation_finds_a_neighbour() {
    let mut idle = Idle::take().unwrap();
    let vm = world::<Ept4>(&mut idle);
    mapped(&mut idle, &vm, &[8, 9]);
    let page = Span::sized(BASE + ((DATA + 12) << PAGE_SHIFT), PAGE_SIZE);
    drop(vm.invalidate(page, Reason::Migrate).apply(&mut idle).settle());
    assert_eq!(frames(&mapped(&mut idle, &vm, &[])), [8, 9, READ_ONLY, 15]);
}

#[test]
fn more_pages_come_with_a_fault_while_l2_goes_on_page_after_page() {
    let mut idle = Idle::take().unwrap();
    let vm = world::<Ept4>(&mut idle);
    let mut count = |stores: &[u64]| mapped(&mut idle, &vm, stores).len();
    assert_eq!(count(&[16, 17]), 8);
    // Each fault is on the first page that is missing.
    assert_eq!(count(&[24, 25]), 8 + 8);
    assert_eq!(count(&[32, 33, 40, 56, 88, 152]), 8 + 8 + 8 + 16 + 32 + 64 + 64);
    assert_eq!(count(&[300, 301]), 8 + 8 + 8 + 16 + 32 + 64 + 64 + 8, "elsewhere");
}
