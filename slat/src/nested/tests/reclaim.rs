//! Reclaim of shadows' table memory under a budget: of tables of L1 that no vCPU runs on, and of those that vCPUs run
//! on.

use super::computed::{BASE, Computed, Contents, RIGHTS};
use crate::nested::*;
use crate::sync::prim::{AtomicU64, Relaxed};
use crate::table::formats::Npt4;
use crate::*;

/// Pages of 2 MiB, of each of which L2 touches one small page.
const TABLES: u64 = 40;

/// L1's tables: frame `r` of the first sixteen is a root, which links 16, and that 17, which links 18 for each 2 MiB:
/// all of L2's memory is L1's frames from 512 on, repeated.
#[derive(Default)]
struct Flat {
    /// Number of entries that were read.
    reads: AtomicU64,
}

impl Contents for Flat {
    fn word(&self, page: u64, nth: u64) -> u64 {
        self.reads.fetch_add(1, Relaxed);
        match (page, nth) {
            (0..=15, 0) => 16 << 12 | 7,
            (16, 0) => 17 << 12 | 7,
            (17, _) => 18 << 12 | 7,
            (18, _) => (512 + nth) << 12 | RIGHTS,
            _ => 0,
        }
    }
}

fn ept(root: u64) -> EptTable {
    EptTable::new(root << 12 | 3 << 3 | 6, EptFeatures::of(46)).unwrap()
}

/// A vCPU touches a page of each 2 MiB on this root.
fn touches(vcpu: &mut Vcpu<'_, Npt4, Computed<Flat>>, idle: &mut Idle, root: u64) {
    let mut l2 = vcpu.nested(idle, ept(root)).unwrap();
    for table in 0..TABLES {
        let gpa = Gfn(table * 512 + table).gpa();
        let done = l2.fault(idle, L1Access::new(gpa, Access::Write)).unwrap();
        let is_there = matches!(
            done,
            L2Next::Handled { next: Next::Resume(Resume::Mapped(Level::K4) | Resume::Spurious), .. }
        );
        assert!(is_there, "{done:?}");
        assert_eq!(l2.translate(gpa).unwrap().pfn, Pfn((BASE.0 >> PAGE_SHIFT) + 512 + table));
    }
}

fn mapped(vcpu: &mut Vcpu<'_, Npt4, Computed<Flat>>, idle: &mut Idle, root: u64) -> u64 {
    let l2 = vcpu.nested(idle, ept(root)).unwrap();
    (0..TABLES).filter(|table| l2.translate(Gfn(table * 512 + table).gpa()).is_some()).count() as u64
}

fn vm(idle: &mut Idle) -> Vm<Npt4, Computed<Flat>> {
    let vm = Vm::<Npt4, _>::builder(Computed::<Flat>::default()).build().unwrap();
    let slot = Slot::new(SlotId(0), Gfn(0), 2048, BASE);
    vm.memory().commit(idle, |tx| tx.create(slot)).unwrap();
    vm
}

fn adds_up(vm: &Vm<Npt4, Computed<Flat>>, idle: &mut Idle) {
    let pages = vm.table_pages(idle);
    assert_eq!(pages.reachable + pages.waiting + pages.free, pages.allocated);
}

#[test]
fn shadows_that_no_vcpu_holds_go_first_and_the_coldest_of_them() {
    let mut idle = Idle::take().unwrap();
    let vm = vm(&mut idle);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let own = Fault { gpa: Gfn(700).gpa(), access: Access::Write };
    let _ = vcpu.fault(&mut idle, own).unwrap();
    for root in 1..=4 {
        touches(&mut vcpu, &mut idle, root);
    }
    // A budget little above the use: the first shadow is reclaimed for the fifth.
    vm.set_table_budget(&mut idle, vm.stats().table_bytes + 16 * PAGE_SIZE);
    touches(&mut vcpu, &mut idle, 5);
    assert!(vm.stats().table_bytes <= vm.pool.budget() * PAGE_SIZE);
    assert_eq!(vm.stats().tables_reclaimed, 1);
    assert!(vm.memory().translate(&mut idle, Gfn(700)).is_some(), "L1's own mappings stay");
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
    // Each page is mapped in the end, and right.
    touches(&mut vcpu, &mut idle, 1);
    touches(&mut vcpu, &mut idle, 1);
    let left = mapped(&mut vcpu, &mut idle, 1);
    assert!((1..TABLES).contains(&left), "{left}");
    drop(vcpu);
    adds_up(&vm, &mut idle);
}

/// A processor that has loaded translations of L2, and perhaps links.
struct Processor(bool);

impl Translations for &mut Processor {
    fn flush_all(&mut self) {
        self.0 = false;
    }
    fn flush(&mut self, _: Span<Gfn>) {}
}

#[test]
fn shadows_that_vcpus_share_are_reclaimed_and_flushed() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(Computed::<Flat>::default()).vcpus(2).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 2048, BASE))).unwrap();
    let (mut first, mut second) = (vm.vcpu(VcpuId(0)).unwrap(), vm.vcpu(VcpuId(1)).unwrap());
    touches(&mut first, &mut idle, 1);
    touches(&mut second, &mut idle, 1);
    let (mut l2, mut cached) = (second.nested(&mut idle, ept(1)).unwrap(), Processor(true));
    drop(l2.enter(&mut idle, &mut &mut cached).poll());
    cached.0 = true;

    let before = vm.stats().table_bytes;
    vm.set_table_budget(&mut idle, before - 16 * PAGE_SIZE);
    assert!(vm.stats().table_bytes <= before - 16 * PAGE_SIZE && vm.stats().tables_reclaimed > 0);
    drop(l2.enter(&mut idle, &mut &mut cached).poll());
    assert!(!cached.0, "no link to what was freed is cached");
    // Each page is mapped in the end, on either vCPU, and right.
    for _ in 0..2 {
        touches(&mut first, &mut idle, 1);
        touches(&mut second, &mut idle, 1);
    }
    let left = mapped(&mut first, &mut idle, 1);
    assert!((1..TABLES).contains(&left), "{left}");
    // On request.
    vm.set_table_budget(&mut idle, 0);
    assert_eq!(mapped(&mut second, &mut idle, 1), 0);
    drop((first, second));
    adds_up(&vm, &mut idle);
}

/// A vCPU faults near its last fault, after the table that it remembers was freed. Returns how many entries of L1's
/// table it reads: on the short path one of its own, and one for each neighbour.
fn near_what_went() -> u64 {
    let mut idle = Idle::take().unwrap();
    let vm = vm(&mut idle);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let mut l2 = vcpu.nested(&mut idle, ept(1)).unwrap();
    for page in 0..2 {
        l2.fault(&mut idle, L1Access::new(Gfn(page).gpa(), Access::Read)).unwrap();
    }
    assert!(vm.take_back_from_a_shadow(&mut idle, true));
    // An ordinary section: the grace period has then ended for this vCPU, too, and faults may take the short path.
    assert!(l2.translate(Gpa(0)).is_none());
    let before = vm.host().0.reads.load(Relaxed);
    // Too far for either fault to have mapped it.
    l2.fault(&mut idle, L1Access::new(Gfn(100).gpa(), Access::Read)).unwrap();
    vm.host().0.reads.load(Relaxed) - before
}

#[test]
fn no_fault_remembers_a_table_that_went() {
    assert_eq!(near_what_went(), 4);
}

/// Other vCPUs may take the second half of each page that a vCPU splits into rows. A fault then still has a page for each
/// table that it may link.
#[test]
fn rows_leave_enough_pages_for_tables() {
    let vm = Vm::<Npt4, _>::builder(Computed::<Flat>::default()).vcpus(1).build().unwrap();
    let (mut idle, mut vcpu) = (Idle::take().unwrap(), vm.vcpu(VcpuId(0)).unwrap());
    let mut l2 = vcpu.nested(&mut idle, ept(0)).unwrap();
    l2.prepare(&mut idle);
    let tables = 2 * usize::from(Npt4::LEVELS);
    assert!(l2.vcpu.cache.len() >= tables, "{} of {tables}", l2.vcpu.cache.len());
}
