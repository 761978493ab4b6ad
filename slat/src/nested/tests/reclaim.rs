//! Table memory of shadows that goes back: under a budget, of tables of L1 that no vCPU runs on; and of the one in use.

use crate::nested::*;
use crate::table::formats::Npt4;
use crate::table::{TableMemory, Word};
use crate::*;

const BASE: Hva = Hva(0x4000_0000);
/// Pages of 2 MiB that L2 touches one small page of.
const TABLES: u64 = 40;
const RIGHTS: u64 = 6 << 3 | 7;

/// L1's tables: frame `r` of the first sixteen is a root, which links 16, and that 17, which links 18 for each 2 MiB: all of L2's memory
/// is L1's frames from 512 on, over and over.
struct Flat;

// SAFETY: the defaults keep the contract.
unsafe impl TableMemory for Flat {}

impl Host for Flat {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        let (page, nth) = ((hva.0 - BASE.0) >> PAGE_SHIFT, hva.offset() / 8);
        Some(Word(match (page, nth) {
            (0..=15, 0) => 16 << 12 | 7,
            (16, 0) => 17 << 12 | 7,
            (17, _) => 18 << 12 | 7,
            (18, _) => (512 + nth) << 12 | RIGHTS,
            _ => 0,
        }))
    }
}

fn ept(root: u64) -> EptTable {
    EptTable::new(root << 12 | 3 << 3 | 6, EptFeatures::of(46)).unwrap()
}

/// A vCPU touches a page of each 2 MiB on this root.
fn touches(vcpu: &mut Vcpu<'_, Npt4, Flat>, idle: &mut Idle, root: u64) {
    let mut l2 = vcpu.nested(idle, ept(root)).unwrap();
    for table in 0..TABLES {
        let gpa = Gfn(table * 512 + table).gpa();
        let done = l2.fault(idle, L1Access::new(gpa, Access::Write)).unwrap();
        assert!(matches!(done, L2Done::Handled { done: Done::Mapped(Level::K4), .. }), "{done:?}");
        assert_eq!(l2.translate(gpa).unwrap().pfn, Pfn((BASE.0 >> PAGE_SHIFT) + 512 + table));
    }
}

fn mapped(vcpu: &mut Vcpu<'_, Npt4, Flat>, idle: &mut Idle, root: u64) -> u64 {
    let l2 = vcpu.nested(idle, ept(root)).unwrap();
    (0..TABLES).filter(|table| l2.translate(Gfn(table * 512 + table).gpa()).is_some()).count() as u64
}

fn vm(idle: &mut Idle) -> Vm<Npt4, Flat> {
    let vm = Vm::<Npt4, _>::builder(Flat).build().unwrap();
    let slot = Slot::new(SlotId(0), Gfn(0), 2048, BASE);
    vm.slots().commit(idle, |tx| tx.create(slot)).unwrap();
    vm
}

fn adds_up(vm: &Vm<Npt4, Flat>, idle: &mut Idle) {
    let pages = vm.table_pages(idle);
    assert_eq!(pages.reachable + pages.waiting + pages.free, pages.allocated);
}

#[test]
fn shadows_that_no_vcpu_holds_go_first_and_the_coldest_of_them() {
    let mut idle = Idle::take().unwrap();
    let vm = vm(&mut idle);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let own = Fault { gpa: Gfn(700).gpa(), access: Access::Write };
    vcpu.fault(&mut idle, own).unwrap();
    for root in 1..=4 {
        touches(&mut vcpu, &mut idle, root);
    }
    // Little more than is in use: the first shadow goes for the fifth.
    vm.set_table_budget(&mut idle, vm.stats().table_bytes + 16 * PAGE_SIZE);
    touches(&mut vcpu, &mut idle, 5);
    assert!(vm.stats().table_bytes <= vm.pool.budget() * PAGE_SIZE);
    assert_eq!(vm.stats().tables_reclaimed, 1);
    assert!(vm.translate(&mut idle, Gfn(700)).is_some(), "L1's own mappings stay");
    let left: std::vec::Vec<_> = (1..=5).map(|root| mapped(&mut vcpu, &mut idle, root)).collect();
    assert_eq!(left, [0, TABLES, TABLES, TABLES, TABLES]);
    drop(vcpu);
    adds_up(&vm, &mut idle);
}

#[test]
fn a_vcpu_takes_back_what_it_has_mapped_itself_where_nothing_else_is_left() {
    let mut idle = Idle::take().unwrap();
    let vm = vm(&mut idle);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    touches(&mut vcpu, &mut idle, 1);
    vm.set_table_budget(&mut idle, vm.stats().table_bytes - 16 * PAGE_SIZE);
    // Each comes, by and by, and is right.
    touches(&mut vcpu, &mut idle, 1);
    touches(&mut vcpu, &mut idle, 1);
    let left = mapped(&mut vcpu, &mut idle, 1);
    assert!((1..TABLES).contains(&left), "{left}");
    drop(vcpu);
    adds_up(&vm, &mut idle);
}
