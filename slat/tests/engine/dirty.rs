//! Dirty logs: marks, changes that a log survives, and that no page is writable without a mark.

use crate::common::identity::Identity;
use crate::common::random::Random;
use slat::slots::{Change, Region};
use slat::table::formats::Ept4;
use slat::*;
use std::sync::Barrier;

const SLOT: SlotId = SlotId(3);
const HVA: Hva = Hva(0x4000_0000);
const PAGES: u64 = 1024;

fn vm(vcpus: u32) -> (Idle, Vm<Ept4, Identity>) {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::builder(Identity::default()).vcpus(vcpus).build().unwrap();
    let slot = Slot::new(SLOT, Gfn(0), PAGES, HVA);
    vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
    (idle, vm)
}

fn touch(vcpu: &mut Vcpu<'_, Ept4, Identity>, idle: &mut Idle, gfn: u64, access: Access) -> Next {
    vcpu.fault(idle, Fault { gpa: Gfn(gfn).gpa(), access }).unwrap()
}

fn dirty(vm: &Vm<Ept4, Identity>, idle: &mut Idle) -> Option<Vec<u64>> {
    let mut gfns = Vec::new();
    vm.memory().dirty(idle, SLOT, |gfn| gfns.push(gfn.0)).ok().map(|()| gfns)
}

fn log(vm: &Vm<Ept4, Identity>, idle: &mut Idle, on: bool) {
    vm.memory().commit(idle, |tx| tx.set_log_dirty(SLOT, on)).unwrap();
}

#[test]
fn stores_are_marked_and_loads_are_not() {
    let (mut idle, vm) = vm(1);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for gfn in 0..8 {
        let _ = touch(&mut vcpu, &mut idle, gfn, Access::Write);
    }
    assert_eq!(dirty(&vm, &mut idle), None, "no log yet");
    log(&vm, &mut idle, true);
    assert_eq!(dirty(&vm, &mut idle), Some(vec![]), "what was written before does not count");

    assert_eq!(
        touch(&mut vcpu, &mut idle, 5, Access::Read),
        Next::Resume(Resume::Spurious),
        "still mapped, for loads"
    );
    assert_eq!(
        touch(&mut vcpu, &mut idle, 5, Access::Write),
        Next::Resume(Resume::Fixed),
        "the store is what faults"
    );
    let _ = touch(&mut vcpu, &mut idle, 600, Access::Read);
    assert!(!vm.memory().translate(&mut idle, Gfn(600)).unwrap().leaf.perms.allows(Access::Write));
    let _ = touch(&mut vcpu, &mut idle, 600, Access::Write);
    let _ = touch(&mut vcpu, &mut idle, 700, Access::Write);
    let _ = touch(&mut vcpu, &mut idle, 701, Access::Fetch);
    vm.memory().mark_dirty(Span::sized(Gfn(900), 1));
    vm.memory().mark_dirty(Span::sized(Gfn(PAGES), 1));
    assert_eq!(dirty(&vm, &mut idle), Some(vec![5, 600, 700, 900]), "a device's write counts; none outside");
}

#[test]
fn a_log_moves_with_its_slot_and_ends_when_switched_off() {
    let (mut idle, vm) = vm(1);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    log(&vm, &mut idle, true);
    for gfn in [0, 9, PAGES - 1] {
        let _ = touch(&mut vcpu, &mut idle, gfn, Access::Write);
    }
    vm.memory().commit(&mut idle, |tx| tx.move_to(SLOT, Gfn(100))).unwrap();
    assert_eq!(dirty(&vm, &mut idle), Some(vec![100, 109, 100 + PAGES - 1]));
    assert_eq!(
        touch(&mut vcpu, &mut idle, 109, Access::Read),
        Next::Resume(Resume::Mapped(Level::K4)),
        "zapped by the move"
    );
    let _ = touch(&mut vcpu, &mut idle, 101, Access::Write);
    assert_eq!(dirty(&vm, &mut idle), Some(vec![100, 101, 109, 100 + PAGES - 1]));

    log(&vm, &mut idle, false);
    assert_eq!(dirty(&vm, &mut idle), None);
    log(&vm, &mut idle, true);
    assert_eq!(dirty(&vm, &mut idle), Some(vec![]), "a new log");

    // A move may switch the log as well: in one request, as a VMM makes it.
    let region =
        |gfn, flags| Region { slot: SLOT, flags, gpa: Gfn(gfn).gpa(), bytes: PAGES * PAGE_SIZE, hva: HVA };
    let _ = touch(&mut vcpu, &mut idle, 101, Access::Write);
    assert!(matches!(vm.memory().set(&mut idle, region(0, 0)), Ok(Change::Moved(_))));
    assert_eq!(dirty(&vm, &mut idle), None);
    assert!(matches!(vm.memory().set(&mut idle, region(8, Region::LOG_DIRTY)), Ok(Change::Moved(_))));
    let _ = touch(&mut vcpu, &mut idle, 8, Access::Write);
    assert_eq!(dirty(&vm, &mut idle), Some(vec![8]));
    assert!(matches!(vm.memory().set(&mut idle, Region::deletion(SLOT)), Ok(Change::Deleted(_))));
    assert_eq!(dirty(&vm, &mut idle), None);
}

#[test]
fn a_refused_transaction_keeps_the_log() {
    let (mut idle, vm) = vm(1);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    log(&vm, &mut idle, true);
    let _ = touch(&mut vcpu, &mut idle, 7, Access::Write);
    let refused = vm.memory().commit(&mut idle, |tx| {
        tx.set_log_dirty(SLOT, false)?;
        tx.set_log_dirty(SLOT, true)?;
        tx.delete(SLOT)?;
        tx.create(Slot::new(SLOT, Gfn(0), 4, HVA).log_dirty())?;
        tx.create(Slot::new(SlotId(4), Gfn(3), 4, HVA))
    });
    assert_eq!(refused.unwrap_err().errno(), 17);
    assert_eq!(dirty(&vm, &mut idle), Some(vec![7]));
}

#[test]
fn large_pages_are_split_for_the_log_and_come_back_after_it() {
    let (mut idle, vm) = vm(1);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    vm.host().offer(Level::M2);
    assert_eq!(touch(&mut vcpu, &mut idle, 0, Access::Write), Next::Resume(Resume::Mapped(Level::M2)));
    log(&vm, &mut idle, true);
    assert_eq!(
        touch(&mut vcpu, &mut idle, 9, Access::Read),
        Next::Resume(Resume::Spurious),
        "it never went away"
    );
    assert_eq!(touch(&mut vcpu, &mut idle, 3, Access::Write), Next::Resume(Resume::Fixed));
    assert_eq!(dirty(&vm, &mut idle), Some(vec![3]));
    log(&vm, &mut idle, false);
    assert_eq!(
        touch(&mut vcpu, &mut idle, 4, Access::Write),
        Next::Resume(Resume::Spurious),
        "writable again, all of it"
    );
    assert_eq!(touch(&mut vcpu, &mut idle, 600, Access::Write), Next::Resume(Resume::Mapped(Level::M2)));
}

/// Returns the pages that a vCPU may write though they are not marked.
fn unmarked(vm: &Vm<Ept4, Identity>, idle: &mut Idle) -> usize {
    let marked = dirty(vm, idle).unwrap_or_default();
    let mut writable = Vec::new();
    vm.memory().lockless(idle).for_each(Span::new(Gfn(0), Gfn(PAGES)), |mapping| {
        if mapping.leaf.perms.allows(Access::Write) {
            writable.extend(mapping.gfns.start.0..mapping.gfns.end.0);
        }
    });
    writable.retain(|gfn| !marked.contains(gfn));
    writable.len()
}

/// vCPUs store and load while the log is switched on, off and moved. Whenever it is on and all threads stand still,
/// each writable page is marked. The negative control is in the same loop: while the log is off, some are not.
#[test]
fn no_page_is_writable_without_a_mark() {
    const ROUNDS: u64 = 60;
    const VCPUS: u32 = 2;
    let (mut idle, vm) = vm(VCPUS);
    let line = Barrier::new(VCPUS as usize + 1);
    let mut control = 0;
    std::thread::scope(|scope| {
        for id in 0..VCPUS {
            let (vm, line) = (&vm, &line);
            scope.spawn(move || {
                let mut idle = Idle::take().unwrap();
                let mut vcpu = vm.vcpu(VcpuId(id)).unwrap();
                let mut random = Random::new(id.into());
                for _ in 0..2 * ROUNDS {
                    line.wait();
                    for _ in 0..400 {
                        let access = random.pick(&[Access::Write, Access::Read]);
                        let _ = touch(&mut vcpu, &mut idle, random.below(PAGES), access);
                    }
                    line.wait();
                    line.wait();
                }
            });
        }
        for round in 0..2 * ROUNDS {
            vm.host().offer(if round % 8 == 3 { Level::M2 } else { Level::K4 });
            line.wait();
            let on = round % 2 == 0;
            log(&vm, &mut idle, on);
            line.wait();
            if on {
                assert_eq!(unmarked(&vm, &mut idle), 0, "round {round}");
            } else {
                control += unmarked(&vm, &mut idle);
            }
            line.wait();
        }
    });
    assert!(control > 0, "without a log pages are writable and not marked: the check can fail");
}
