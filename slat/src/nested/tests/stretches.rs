//! How long the operations of `ARCHITECTURE.md` hold a section, or a counted walk of a shadow, in entries that they visit: the
//! same for a small and for a large memory of L1 that L2 uses.

use super::computed::{BASE, Computed, Contents, RIGHTS};
use crate::nested::*;
use crate::notify::{SecondaryMmu, Young};
use crate::sync::longest::longest;
use crate::table::formats::Ept4;
use crate::*;
use std::vec::Vec;

/// L1's tables, by frame: 1 links 2, 2 links 3, and 3 links those from 4 on. L2's frame n is L1's frame `DATA` + n.
const DATA: u64 = 512;

struct Straight;

impl Contents for Straight {
    fn word(&self, page: u64, nth: u64) -> u64 {
        match (page, nth) {
            (1 | 2, 0) => (page + 1) << 12 | 7,
            (3, _) => (4 + nth) << 12 | 7,
            (4.., _) => (DATA + (page - 4) * 512 + nth) << 12 | RIGHTS,
            _ => 0,
        }
    }
}

type Operation<'a> = &'a dyn Fn(&Vm<Ept4, Computed<Straight>>, &mut Idle);

/// A VM whose L2 uses `pages` pages.
struct World {
    idle: Idle,
    vm: Vm<Ept4, Computed<Straight>>,
    pages: u64,
}

impl World {
    fn new(pages: u64) -> Self {
        let mut idle = Idle::take().unwrap();
        let vm = Vm::<Ept4, _>::builder(Computed(Straight)).build().unwrap();
        let slot = Slot::new(SlotId(0), Gfn(0), DATA + pages, BASE);
        vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
        let mut world = Self { idle, vm, pages };
        world.touch();
        world
    }

    /// L2 and L1 store to each page.
    fn touch(&mut self) {
        let mut vcpu = self.vm.vcpu(VcpuId(0)).unwrap();
        let ept = EptTable::new(1 << 12 | 3 << 3 | 6, EptFeatures::of(46)).unwrap();
        let mut l2 = vcpu.nested(&mut self.idle, ept).unwrap();
        for g2 in 0..self.pages {
            let done = l2.fault(&mut self.idle, L1Access::new(Gfn(g2).gpa(), Access::Write));
            assert!(matches!(done, Ok(L2Next::Handled { .. })), "{done:?}");
        }
        for g1 in (DATA..DATA + self.pages).step_by(64) {
            let _ = vcpu.fault(&mut self.idle, Fault { gpa: Gfn(g1).gpa(), access: Access::Write }).unwrap();
        }
    }

    /// Returns the longest section of each operation.
    fn operate(&mut self) -> Vec<(&'static str, u64)> {
        let gfns = Span::new(Gfn(0), Gfn(DATA + self.pages));
        let hvas = Span::sized(BASE, (DATA + self.pages) << PAGE_SHIFT);
        let operations: [(&'static str, Operation<'_>); 13] = [
            ("translate, visit leaves", &|vm, idle| vm.memory().lockless(idle).for_each(gfns, |_| ())),
            ("count table pages", &|vm, idle| _ = vm.table_pages(idle)),
            ("age", &|vm, idle| vm.memory().lockless(idle).age(gfns, |_| ())),
            ("age by host addresses", &|vm, idle| {
                SecondaryMmu::young(vm, idle, hvas, Young::ClearAndFlush);
            }),
            ("write-protect", &|vm, idle| _ = vm.memory().write_protect(idle, gfns).settle()),
            ("begin a log", &|vm, idle| {
                vm.memory().commit(idle, |tx| tx.set_log_dirty(SlotId(0), true)).unwrap();
            }),
            ("harvest", &|vm, idle| vm.memory().harvest(idle, SlotId(0)).unwrap().commit()),
            ("look at a log", &|vm, idle| vm.memory().dirty(idle, SlotId(0), |_| ()).unwrap()),
            ("invalidate", &|vm, idle| _ = vm.invalidate(hvas, Reason::Unmap).apply(idle).settle()),
            ("invalidate frames", &|vm, idle| vm.take_away(idle, SpaceId(0), gfns)),
            ("take from a shadow", &|vm, idle| _ = vm.take_back_from_a_shadow(idle, false)),
            ("zap all", &|vm, idle| vm.zap_all(idle).unwrap()),
            ("delete a slot", &|vm, idle| {
                vm.memory().commit(idle, |tx| tx.delete(SlotId(0))).unwrap();
            }),
        ];
        let mut all = Vec::new();
        for (name, work) in operations {
            self.touch();
            let ((), most) = longest(|| work(&self.vm, &mut self.idle));
            all.push((name, most));
        }
        all
    }
}

#[test]
fn no_operation_holds_a_section_for_all_that_l2_uses() {
    let mut all = World::new(24 * 1024).operate();
    all.retain(|&(_, most)| most > 30_000);
    assert_eq!(all, []);
}
