//! A VMM that runs vCPUs, and stores to logged memory, against the contract.

use crate::Case;
use crate::machine::{RAM, Tlb, hvas};
use slat::entry::Go;
use slat::notify::SecondaryMmu;
use slat::oracle::Rule::*;
use slat::*;
use std::mem::forget;
use std::sync::atomic::Ordering::Relaxed;

const VCPU: VcpuId = VcpuId(0);
const FRAME: Pfn = Pfn(0x9005);

/// Runs `work` on another thread, with its own token.
pub fn beside(work: impl FnOnce(&mut Idle) + Send) {
    std::thread::scope(|scope| scope.spawn(|| work(&mut Idle::take().unwrap())).join().unwrap());
}

/// A vCPU leaves the guest some time after a kick.
pub fn is_kicked(fixture: &mut crate::machine::Fixture<'_>) {
    let (vm, mut vcpu) = (fixture.vm, fixture.vm.vcpu(VCPU).unwrap());
    let guest = vcpu.enter(fixture.idle, &mut Tlb(0)).poll();
    beside(|idle| vm.forget(idle, hvas(5)));
    std::thread::sleep(std::time::Duration::from_millis(1));
    drop(guest);
}

pub const CASES: &[Case] = &[
    ("a flush forgets nothing", &[(StaleUse, "InGuest::uses")], |fixture, wrong| {
        fixture.ask(5, Access::Read);
        let (vm, mut vcpu) = (fixture.vm, fixture.vm.vcpu(VCPU).unwrap());
        vcpu.enter(fixture.idle, &mut Tlb(0)).poll().uses(Gfn(5), FRAME, Access::Read);
        vm.change(fixture.idle, hvas(5), Why::Unmap, |_| vm.host().set(5, None));
        let guest = vcpu.enter(fixture.idle, &mut Tlb(0)).poll();
        if wrong {
            guest.uses(Gfn(5), FRAME, Access::Read);
        }
        guest.uses(Gfn(6), Pfn(0x9006), Access::Read);
    }),
    ("a broadcast forgets nothing", &[(StaleUse, "InGuest::uses")], |fixture, wrong| {
        fixture.ask(5, Access::Read);
        let (vm, mut vcpu) = (fixture.vm, fixture.vm.vcpu(VCPU).unwrap());
        drop(vcpu.enter(fixture.idle, &mut Tlb(0)));
        vm.host().broadcasts.store(true, Relaxed);
        let guest = vcpu.enter(fixture.idle, &mut Tlb(0)).poll();
        guest.uses(Gfn(5), FRAME, Access::Read);
        beside(|idle| vm.change(idle, hvas(5), Why::Unmap, |_| vm.host().set(5, None)));
        if wrong {
            guest.uses(Gfn(5), FRAME, Access::Read);
        }
    }),
    ("a flush forgets no write permission", &[(StaleWrite, "InGuest::uses")], |fixture, wrong| {
        fixture.ask(5, Access::Write);
        let (vm, mut vcpu) = (fixture.vm, fixture.vm.vcpu(VCPU).unwrap());
        vm.change(fixture.idle, hvas(5), Why::WriteProtect, |_| {});
        let guest = vcpu.enter(fixture.idle, &mut Tlb(0)).poll();
        guest.uses(Gfn(5), FRAME, if wrong { Access::Write } else { Access::Read });
    }),
    ("a software vCPU does not poll", &[(KickIgnored, "InGuest::uses")], |fixture, wrong| {
        fixture.ask(5, Access::Read);
        let (vm, mut vcpu) = (fixture.vm, fixture.vm.vcpu(VCPU).unwrap());
        let mut guest = vcpu.enter(fixture.idle, &mut Tlb(0)).poll();
        beside(|idle| vm.forget(idle, hvas(5)));
        if !wrong && guest.kicked() {
            guest.answer(&mut Tlb(0));
        }
        (0..5000).for_each(|_| guest.uses(Gfn(5), FRAME, Access::Read));
    }),
    ("the old root stays in the control block", &[(StaleRoot, "InGuest::drop")], |fixture, wrong| {
        let (vm, mut vcpu) = (fixture.vm, fixture.vm.vcpu(VCPU).unwrap());
        for loads in [true, !wrong] {
            let ready = vcpu.enter(fixture.idle, &mut Tlb(0));
            if loads {
                let _control_block = ready.root();
            }
            let Go::In(guest, ()) = ready.go(|| ()) else { panic!("nothing kicks") };
            drop(guest);
            vm.zap_all(fixture.idle).unwrap();
        }
    }),
    (
        "the thread moves while its vCPU is in the guest",
        &[(MovedInGuest, "InGuest::answer")],
        |fixture, wrong| {
            let mut vcpu = fixture.vm.vcpu(VCPU).unwrap();
            let mut guest = vcpu.enter(fixture.idle, &mut Tlb(0)).poll();
            guest.answer(&mut Tlb(u64::from(wrong)));
        },
    ),
    ("the guard of a guest is leaked", &[(GuestLeaked, "mem::forget")], |fixture, wrong| {
        let mut vcpu = fixture.vm.vcpu(VCPU).unwrap();
        let guest = vcpu.enter(fixture.idle, &mut Tlb(0)).poll();
        if wrong {
            forget(guest);
        } else {
            drop(guest);
        }
        let _ = vcpu.fault(fixture.idle, Fault { gpa: Gfn(5).gpa(), access: Access::Read }).unwrap();
    }),
    ("a walker sets no Dirty bit", &[(StoreUnlogged, "GuestSpace::harvest")], |fixture, wrong| {
        let (vm, idle) = (fixture.vm, &mut *fixture.idle);
        vm.memory().commit(idle, |tx| tx.set_log_dirty(SlotId(0), true)).unwrap();
        let mut vcpu = vm.vcpu(VCPU).unwrap();
        let _ = vcpu.fault(idle, Fault { gpa: Gfn(5).gpa(), access: Access::Write }).unwrap();
        vm.memory().harvest(idle, SlotId(0)).unwrap().commit();
        if !wrong {
            vcpu.access(idle, Gfn(5).gpa(), Access::Write).unwrap();
        }
        vcpu.enter(idle, &mut Tlb(0)).poll().uses(Gfn(5), FRAME, Access::Write);
        vm.memory().harvest(idle, SlotId(0)).unwrap().commit();
    }),
    ("a device's store is not marked", &[(StoreUnlogged, "GuestSpace::harvest")], |fixture, wrong| {
        let (vm, idle) = (fixture.vm, &mut *fixture.idle);
        vm.memory().commit(idle, |tx| tx.set_log_dirty(SlotId(0), true)).unwrap();
        vm.oracle().stores(SpaceId(0), Gfn(5), || {
            if !wrong {
                vm.mark_dirty(Span::sized(RAM + 5 * PAGE_SIZE, 1));
            }
        });
        vm.memory().harvest(idle, SlotId(0)).unwrap().commit();
        // A harvest between the mark and the end of the call may have taken the store.
        vm.oracle().stores(SpaceId(0), Gfn(6), || {
            vm.mark_dirty(Span::sized(RAM + 6 * PAGE_SIZE, 1));
            vm.memory().harvest(idle, SlotId(0)).unwrap().commit();
        });
        vm.memory().harvest(idle, SlotId(0)).unwrap().commit();
    }),
];
