//! A thread that others wait for takes long. Only threads that need it wait.
//!
//! Threads signal their progress by channels, so the test decides how long "long" is.

use super::controlled_host::{ALL, HVA, NoTlb, RAM, TestVm, hvas, on_a_vm, one, store, unmap};
use slat::baselines::MmuLock;
use slat::*;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread;

fn idle() -> Idle {
    Idle::take().expect("one for each thread")
}

/// Operations during the wait: faults, aging, invalidations of pages that no vCPU has.
fn others_go_on(vm: &TestVm<'_>, idle: &mut Idle, vcpu: VcpuId) {
    for gfn in (1024..ALL.end.0).map(Gfn) {
        let _ = store(vm, idle, vcpu, gfn).unwrap();
    }
    assert!(vm.young(idle, hvas(Span::new(Gfn(1024), ALL.end)), Young::Clear));
    drop(vm.invalidate(Span::new(HVA + (1 << 40), HVA + (2 << 40)), Reason::Unmap).apply(idle).settle());
}

#[test]
fn a_reader_that_stays_keeps_memory_and_no_thread() {
    on_a_vm(MmuLock::None, |vm, idle| {
        (0..1024).for_each(|gfn| assert!(store(vm, idle, VcpuId(0), Gfn(gfn)).is_ok()));
        let many = Slot::new(SlotId(8), Gfn(1 << 24), 100 * 512, HVA);
        vm.memory().commit(idle, |tx| tx.create(many)).unwrap();
        let ((inside, is_inside), (go, goes)) = (channel(), channel::<()>());
        let (collected, deleted) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            // After a failure here, the other thread ends.
            let go = go;
            scope.spawn(move || {
                let mut idle = self::idle();
                let walk = vm.memory().lockless(&mut idle);
                let before = walk.translate(Gfn(5));
                inside.send(()).unwrap();
                goes.recv().unwrap();
                assert_eq!((before.is_some(), walk.translate(Gfn(5))), (true, None), "it may go on looking");
            });
            is_inside.recv().unwrap();
            unmap(vm, idle, Span::new(Gfn(0), Gfn(1024)));
            let (begins, begun) = channel();
            let (begins_too, collected, deleted) = (begins.clone(), &collected, &deleted);
            scope.spawn(move || {
                begins.send(()).unwrap();
                vm.collect(&mut self::idle());
                collected.store(true, SeqCst);
            });
            scope.spawn(move || {
                let mut idle = self::idle();
                let slot = Slot::new(SlotId(9), Gfn(1 << 20), 512, HVA);
                vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
                begins_too.send(()).unwrap();
                vm.memory().commit(&mut idle, |tx| tx.delete(SlotId(9))).unwrap();
                deleted.store(true, SeqCst);
            });
            (0..2).for_each(|_| begun.recv().unwrap());
            others_go_on(vm, idle, VcpuId(1));
            // Tables are available, too, although no unmapped one can be reused yet.
            for table in 0..100 {
                let _ = store(vm, idle, VcpuId(1), many.gfns.start + table * 512).unwrap();
            }
            assert_eq!(
                (collected.load(SeqCst), deleted.load(SeqCst)),
                (false, false),
                "both wait for the reader"
            );
            go.send(()).unwrap();
        });
        assert_eq!((collected.load(SeqCst), deleted.load(SeqCst)), (true, true));
        vm.memory().commit(idle, |tx| tx.delete(SlotId(8))).unwrap();
    });
}

/// Tables that wait for such a reader are reused when it ends; until then the host lends others.
#[test]
fn a_reader_that_stays_keeps_no_fault() {
    on_a_vm(MmuLock::None, |vm, idle| {
        let many = Slot::new(SlotId(8), Gfn(1 << 24), 100 * 512, HVA);
        vm.memory().commit(idle, |tx| tx.create(many)).unwrap();
        let _ = store(vm, idle, VcpuId(0), Gfn(5)).unwrap();
        let ((inside, is_inside), (go, goes)) = (channel(), channel::<()>());
        thread::scope(|scope| {
            let go = go;
            scope.spawn(move || {
                let mut idle = self::idle();
                let _walk = vm.memory().lockless(&mut idle);
                inside.send(()).unwrap();
                goes.recv().unwrap();
            });
            is_inside.recv().unwrap();
            unmap(vm, idle, Span::new(Gfn(0), Gfn(512)));
            for table in 0..100 {
                let _ = store(vm, idle, VcpuId(1), many.gfns.start + table * 512).unwrap();
            }
            assert_eq!(vm.stats().tables_waiting, 1, "the one that was unmapped");
            go.send(()).unwrap();
        });
        vm.memory().commit(idle, |tx| tx.delete(SlotId(8))).unwrap();
    });
}

#[test]
fn a_vcpu_that_does_not_answer_keeps_its_flusher_and_who_waits_for_him() {
    on_a_vm(MmuLock::None, |vm, idle| {
        let _ = store(vm, idle, VcpuId(0), Gfn(5)).unwrap();
        let ((inside, is_inside), (go, goes)) = (channel(), channel::<()>());
        let (flushed, faulted) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            let (flushed, faulted, go) = (&flushed, &faulted, go);
            scope.spawn(move || {
                let mut idle = self::idle();
                let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
                let mut guest = vcpu.enter(&mut idle, &mut NoTlb).poll();
                inside.send(()).unwrap();
                goes.recv().unwrap();
                assert!(guest.kicked(), "a thread waits");
                assert!(!flushed.load(SeqCst) && !faulted.load(SeqCst));
                guest.answer(&mut NoTlb);
            });
            is_inside.recv().unwrap();
            let (begins, begun) = channel();
            scope.spawn(move || {
                let mut idle = self::idle();
                let change = vm.invalidate(hvas(one(Gfn(5))), Reason::Migrate);
                let debt = change.apply(&mut idle);
                begins.send(()).unwrap();
                drop(debt.settle());
                flushed.store(true, SeqCst);
            });
            begun.recv().unwrap();
            scope.spawn(move || {
                let _ = store(vm, &mut self::idle(), VcpuId(2), Gfn(5)).unwrap();
                assert!(flushed.load(SeqCst), "the page comes back when the invalidation is over");
                faulted.store(true, SeqCst);
            });
            others_go_on(vm, idle, VcpuId(1));
            while vm.host().0.kicks.load(SeqCst) == 0 {
                thread::yield_now();
            }
            assert!(!flushed.load(SeqCst) && !faulted.load(SeqCst));
            let unanswered: Vec<_> = vm.unanswered().collect();
            let [Unanswered { vcpu: VcpuId(0), since: 1.., flushes: 1.. }] = *unanswered else {
                panic!("{unanswered:?}")
            };
            assert_eq!(vm.unanswered().next().map(|one| one.since), Some(unanswered[0].since));
            go.send(()).unwrap();
        });
        assert!(flushed.load(SeqCst) && faulted.load(SeqCst));
        assert_eq!(vm.unanswered().next(), None);
    });
}

/// A flush does not wait for a vCPU that is out of the guest, however long it stops.
#[test]
fn a_vcpu_that_stops_out_of_the_guest_keeps_no_thread() {
    for lock in super::controlled_host::POLICIES {
        on_a_vm(lock, |vm, idle| {
            let mut stopped = vm.vcpu(VcpuId(0)).unwrap();
            let _ = stopped.fault(idle, Fault { gpa: Gfn(5).gpa(), access: Access::Write }).unwrap();
            unmap(vm, idle, ALL);
            vm.collect(idle);
            vm.zap_all(idle).unwrap();
            vm.memory().commit(idle, |tx| tx.move_to(RAM, Gfn(4096))).unwrap();
            vm.memory().commit(idle, |tx| tx.move_to(RAM, Gfn(0))).unwrap();
            others_go_on(vm, idle, VcpuId(1));
            assert_eq!(vm.unanswered().next(), None, "flushes wait for no vCPU out of the guest");
            let again = stopped.fault(idle, Fault { gpa: Gfn(5).gpa(), access: Access::Write });
            assert_eq!(
                again,
                Ok(Next::Resume(Resume::Mapped(Level::K4))),
                "it goes on as if nothing had been"
            );
        });
    }
}

/// Nor for a vCPU whose host blocks; and the host's earlier answer is not used afterwards.
#[test]
fn a_host_that_blocks_keeps_its_own_fault_only() {
    for lock in super::controlled_host::POLICIES {
        on_a_vm(lock, |vm, idle| {
            let (asked, go) = vm.host().0.will_wait(Gfn(5));
            thread::scope(|scope| {
                let go = go;
                let waiting = scope.spawn(move || store(vm, &mut self::idle(), VcpuId(0), Gfn(5)));
                asked.recv().unwrap();
                let change = vm.invalidate(hvas(one(Gfn(5))), Reason::Migrate).apply(idle).settle();
                vm.host().0.moves(Gfn(5), Pfn(0x77_7777));
                drop(change);
                vm.zap_all(idle).unwrap();
                vm.memory().commit(idle, |tx| tx.move_to(RAM, Gfn(4096))).unwrap();
                vm.memory().commit(idle, |tx| tx.move_to(RAM, Gfn(0))).unwrap();
                others_go_on(vm, idle, VcpuId(1));
                assert_eq!(vm.memory().translate(idle, Gfn(5)), None);
                go.send(()).unwrap();
                assert_eq!(waiting.join().unwrap(), Ok(Next::Resume(Resume::Mapped(Level::K4))));
            });
            assert_eq!(
                vm.memory().translate(idle, Gfn(5)).unwrap().leaf.pfn,
                Pfn(0x77_7777),
                "the page of now"
            );
        });
    }
}
