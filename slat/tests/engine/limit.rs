//! Table memory with a budget: the coldest tables are reclaimed, and the guest continues.

use crate::common::identity::Identity;
use slat::table::formats::Npt4;
use slat::*;

const RAM: Hva = Hva(0x40_0000_0000);
const TABLE: u64 = Level::M2.pages();
const BUDGET: u64 = 64;

fn vm(idle: &mut Idle, budget: u64) -> Vm<Npt4, Identity> {
    let vm = Vm::<Npt4, _>::builder(Identity::default())
        .vcpus(4)
        .table_budget(budget * PAGE_SIZE)
        .build()
        .unwrap();
    vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 4096 * TABLE, RAM))).unwrap();
    vm
}

fn touch(vcpu: &mut Vcpu<'_, Npt4, Identity>, idle: &mut Idle, gfn: u64) -> Result<Next, FaultError> {
    vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Write })
}

/// Walks to `gfn` as the hardware does, setting Accessed on the way. Returns whether it is mapped.
fn walk_in_hardware(vm: &Vm<Npt4, Identity>, gfn: Gfn) -> bool {
    let mut table = vm.memory().root();
    for level in (1..=4).rev().filter_map(Level::new) {
        // SAFETY: a table of this VM; no other thread is there to give it back.
        let entry = unsafe {
            vm.tables().at(table).cast::<slat::table::Entry>().add(Npt4::index(gfn, level)).as_ref()
        };
        let word = entry.load();
        if !Npt4::is_present(word) {
            return false;
        }
        // SAFETY: what a walker sets, in links and leaves alike.
        unsafe { entry.touch_raw(word, Npt4::ACCESSED) };
        table = Npt4::pfn(word);
    }
    true
}

#[test]
fn the_coldest_tables_go_and_the_hot_one_stays() {
    let mut idle = Idle::take().unwrap();
    let vm = vm(&mut idle, BUDGET);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let hot = Gfn(3);
    assert_eq!(touch(&mut vcpu, &mut idle, hot.0), Ok(Next::Resume(Resume::Mapped(Level::K4))));
    for region in 1..1000 {
        assert!(walk_in_hardware(&vm, hot), "used all the time, never taken back: region {region}");
        assert_eq!(
            touch(&mut vcpu, &mut idle, region * TABLE + region % TABLE),
            Ok(Next::Resume(Resume::Mapped(Level::K4)))
        );
        assert!(vm.stats().table_bytes <= BUDGET * PAGE_SIZE);
    }
    let stats = vm.stats();
    assert!(stats.tables_reclaimed > 400, "{stats:?}");
    assert!(stats.leaves[0] > BUDGET / 4 && stats.leaves[0] < BUDGET, "what fits is mapped: {stats:?}");
    // Negative control: an unused table does not stay.
    assert!(!walk_in_hardware(&vm, Gfn(TABLE + 1)));
    drop(vcpu);
    let pages = vm.table_pages(&mut idle);
    assert_eq!(pages.reachable + pages.waiting + pages.free, pages.allocated);
}

#[test]
fn a_budget_can_be_lowered_and_lifted_while_the_vm_runs() {
    let mut idle = Idle::take().unwrap();
    let vm = vm(&mut idle, 1 << 20);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    assert_eq!(vcpu.prefault(&mut idle, Span::new(Gfn(0), Gfn(400 * TABLE)), Prefault::OLD), Ok(400 * TABLE));
    assert!(vm.stats().table_bytes > 400 * PAGE_SIZE);
    vm.set_table_budget(&mut idle, 100 * PAGE_SIZE);
    assert!(vm.stats().table_bytes <= 100 * PAGE_SIZE);
    assert!(vm.stats().leaves[0] < 100 * TABLE);
    assert!(touch(&mut vcpu, &mut idle, 399 * TABLE + 7).is_ok(), "it faults back in");

    // Less than one fault needs, beside the vCPU's spare pages: a typed error, and the VM continues.
    vm.set_table_budget(&mut idle, 0);
    let failed = (0..20).map(|region| touch(&mut vcpu, &mut idle, region * TABLE)).find(Result::is_err);
    assert_eq!(failed, Some(Err(FaultError::NoMemory)));
    vm.set_table_budget(&mut idle, u64::MAX);
    for region in 0..20 {
        assert!(touch(&mut vcpu, &mut idle, region * TABLE).is_ok());
    }
}

#[test]
fn many_vcpus_share_a_small_budget() {
    let mut idle = Idle::take().unwrap();
    let vm = vm(&mut idle, BUDGET);
    drop(idle);
    std::thread::scope(|scope| {
        for id in 0..4 {
            let vm = &vm;
            scope.spawn(move || {
                let mut idle = Idle::take().unwrap();
                let mut vcpu = vm.vcpu(VcpuId(id)).unwrap();
                for round in 0..400 {
                    let region = (round * 7 + u64::from(id) * 1009) % 4096;
                    let _ =
                        touch(&mut vcpu, &mut idle, region * TABLE + round).expect("never fails, only waits");
                }
            });
        }
    });
    let mut idle = Idle::take().unwrap();
    let pages = vm.table_pages(&mut idle);
    assert_eq!(pages.reachable + pages.waiting + pages.free, pages.allocated);
    assert!(pages.reachable <= BUDGET + 4, "each may go one page beyond: {pages:?}");
    let mut leaves = 0;
    vm.memory().lockless(&mut idle).for_each(Span::new(Gfn(0), Gfn(u64::MAX)), |_| leaves += 1);
    vm.collect(&mut idle);
    assert_eq!(vm.stats().leaves[0], leaves, "every leaf is accounted for");
}
