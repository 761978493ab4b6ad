//! A thread unwinds in the middle of an operation: what it held is free, what it had begun is over or undone.

use super::controlled_host::{ALL, NoTlb, POLICIES, RAM, TestVm, When, hvas, on_a_vm, one, store, unmap};
use slat::baselines::MmuLock;
use slat::*;
use std::panic::resume_unwind;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

/// Runs `work` on a thread of its own, which its panic ends.
fn dies(vm: &TestVm<'_>, work: impl FnOnce(&TestVm<'_>, &mut Idle) + Send) {
    let died = thread::scope(|scope| scope.spawn(|| work(vm, &mut Idle::take().unwrap())).join());
    assert!(died.is_err(), "it panics");
}

/// A panic without a message.
fn panics() -> ! {
    resume_unwind(Box::new("on purpose"))
}

#[test]
fn in_the_guest() {
    for lock in POLICIES {
        on_a_vm(lock, |vm, idle| {
            let _ = store(vm, idle, VcpuId(0), Gfn(5)).unwrap();
            dies(vm, |vm, idle| {
                let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
                let _guest = vcpu.enter(idle, &mut NoTlb);
                panics();
            });
            // No thread waits for its answer, and its number is free.
            unmap(vm, idle, ALL);
            assert_eq!(store(vm, idle, VcpuId(0), Gfn(5)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
        });
    }
}

#[test]
fn in_the_host_that_is_asked() {
    for lock in POLICIES {
        on_a_vm(lock, |vm, idle| {
            vm.host().0.will(Gfn(5), When::Panics);
            dies(vm, |vm, idle| assert!(store(vm, idle, VcpuId(0), Gfn(5)).is_ok()));
            assert_eq!(vm.memory().translate(idle, Gfn(5)), None);
            assert_eq!(store(vm, idle, VcpuId(0), Gfn(5)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
        });
    }
}

/// In the middle of a walk: with a section open, or a lock held.
#[test]
fn in_the_host_that_answers_without_sleeping() {
    for lock in POLICIES {
        on_a_vm(lock, |vm, idle| {
            for gfn in [Gfn(5), Gfn(6), Gfn(700)] {
                *vm.host().0.looked_up.lock().unwrap() = Some(gfn);
                dies(vm, |vm, idle| assert!(store(vm, idle, VcpuId(0), gfn).is_ok()));
                // A grace period ends, because the section did.
                unmap(vm, idle, ALL);
                vm.collect(idle);
                let _ = store(vm, idle, VcpuId(0), Gfn(4)).unwrap();
            }
        });
    }
}

/// With an entry frozen: it is thawed to what it was.
#[test]
fn in_an_upgrade() {
    for lock in POLICIES {
        on_a_vm(lock, |vm, idle| {
            let host = vm.host().0;
            host.read_only.store(true, SeqCst);
            let read = Fault { gpa: Gfn(5).gpa(), access: Access::Read };
            let _ = vm.vcpu(VcpuId(0)).unwrap().fault(idle, read).unwrap();
            let before = vm.memory().translate(idle, Gfn(5));
            host.read_only.store(false, SeqCst);
            *host.looked_up.lock().unwrap() = Some(Gfn(5));
            dies(vm, |vm, idle| assert!(store(vm, idle, VcpuId(0), Gfn(5)).is_ok()));
            assert!(before.is_some());
            assert_eq!(vm.memory().translate(idle, Gfn(5)), before, "the guest still has its page");
            assert_eq!(store(vm, idle, VcpuId(1), Gfn(5)), Ok(Next::Resume(Resume::Fixed)));
        });
    }
}

/// With the link of a table frozen, and another table in hand that must be given back.
#[test]
fn in_a_recovery() {
    for lock in POLICIES {
        on_a_vm(lock, |vm, idle| {
            let host = vm.host().0;
            host.large.store(true, SeqCst);
            for gfn in [0, 512, 1024] {
                assert_eq!(store(vm, idle, VcpuId(0), Gfn(gfn)), Ok(Next::Resume(Resume::Mapped(Level::M2))));
            }
            assert_eq!(vm.memory().split(idle, ALL, Level::K4), Ok(3));
            *host.looked_up.lock().unwrap() = Some(Gfn(512));
            dies(vm, |vm, idle| {
                let _ = vm.memory().recover(idle, ALL);
            });
            let levels =
                [5, 517, 1029].map(|gfn| vm.memory().translate(idle, Gfn(gfn)).map(|found| found.level));
            assert_eq!(levels, [Some(Level::M2), Some(Level::K4), Some(Level::K4)]);
            assert_eq!(vm.memory().recover(idle, ALL), 2);
        });
    }
}

#[test]
fn in_a_transaction() {
    on_a_vm(MmuLock::None, |vm, idle| {
        let _ = store(vm, idle, VcpuId(0), Gfn(5)).unwrap();
        dies(vm, |vm, idle| {
            let _ = vm.memory().commit(idle, |tx| -> Result<(), SlotError> {
                tx.delete(RAM)?;
                tx.create(Slot::new(SlotId(3), Gfn(0), 8, Hva(0)).log_dirty())?;
                panics()
            });
        });
        assert_eq!((vm.memory().len(), vm.memory().find(idle, Gfn(5)).unwrap().id), (1, RAM));
        assert!(vm.memory().translate(idle, Gfn(5)).is_some(), "nothing has changed");
    });
}

/// The host panics while it changes its pages, of which it had told one: the debt is paid, and faults continue.
#[test]
fn in_a_change_of_the_host() {
    for lock in POLICIES {
        on_a_vm(lock, |vm, idle| {
            let _ = store(vm, idle, VcpuId(0), Gfn(5)).unwrap();
            let _ = store(vm, idle, VcpuId(0), Gfn(6)).unwrap();
            let before = vm.stats().flushes.paid;
            dies(vm, |vm, idle| {
                let event = Event::new(hvas(ALL), Reason::Reclaim);
                let _ = vm.around(idle, event, &mut |idle, told| {
                    told.changed(idle, hvas(one(Gfn(5))), None);
                    panics();
                });
            });
            assert_eq!(vm.stats().flushes.paid, before + 1);
            assert!(
                vm.memory().translate(idle, Gfn(5)).is_none()
                    && vm.memory().translate(idle, Gfn(6)).is_some()
            );
            assert_eq!(store(vm, idle, VcpuId(1), Gfn(5)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
        });
    }
}

#[test]
fn in_an_observer() {
    for lock in POLICIES {
        on_a_vm(lock, |vm, idle| {
            let _ = store(vm, idle, VcpuId(0), Gfn(5)).unwrap();
            dies(vm, |vm, idle| vm.memory().shared(idle).for_each(ALL, |_| panics()));
            unmap(vm, idle, ALL);
            vm.collect(idle);
        });
    }
}
