//! A vCPU never uses its memo of the last fault longer than it is valid.

use super::common::{Tlb, hva5, page, ram, vm, write};
use slat::table::formats::Npt4;
use slat::{Emulate, Gfn, Idle, Level, Next, Reason, Resume, SlotId, Span, VcpuId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Barrier, mpsc};
use std::thread;

/// Slots A (frames 0 to 7) and B (8 to 15) share a leaf table. A transaction deletes B, and stops twice: before it
/// publishes, since vCPU 1 has not answered its flush, and after, since a snapshot is held. vCPU 0 confirms A during
/// the active invalidation, and looks B up.
#[test]
fn a_slot_that_is_gone_is_not_mapped_by_the_stamp_of_its_neighbour() {
    vm!(Npt4, |hva| Some(page(hva)), idle, vm, vcpu);
    vm.memory().commit(&mut idle, |tx| tx.create(ram(1, 8, 8, 0x9000_0000))).unwrap();
    let (in_guest, held) = (Barrier::new(2), Barrier::new(3));
    let (deleting, deletes) = mpsc::channel();
    let (answer, answers) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let (vm, in_guest, held) = (&vm, &in_guest, &held);
        scope.spawn(move || {
            let (mut idle, mut tlb) = (Idle::take().unwrap(), Tlb::default());
            let mut vcpu = vm.vcpu(VcpuId(1)).unwrap();
            let _ = vcpu.fault(&mut idle, write(9)).unwrap();
            let mut guest = vcpu.enter(&mut idle, &mut tlb).poll();
            in_guest.wait();
            while !guest.kicked() {
                thread::yield_now();
            }
            deleting.send(()).unwrap();
            answers.recv().unwrap();
            guest.answer(&mut tlb);
        });
        in_guest.wait();
        scope.spawn(move || {
            let (mut idle, slots) = (Idle::take().unwrap(), vm.memory());
            let _snapshot = slots.snapshot(&mut idle);
            held.wait();
            let _ = released.recv();
        });
        scope.spawn(move || {
            held.wait();
            vm.memory().commit(&mut Idle::take().unwrap(), |tx| tx.delete(SlotId(1))).unwrap();
        });
        held.wait();
        deletes.recv().unwrap();

        let retries = vm.stats().retries;
        assert_eq!(
            vcpu.fault(&mut idle, write(1)),
            Ok(Next::Resume(Resume::Mapped(Level::K4))),
            "in A: confirms it"
        );
        assert_eq!(vcpu.fault(&mut idle, write(2)), Ok(Next::Resume(Resume::Mapped(Level::K4))), "in A");
        scope.spawn(move || {
            // The fault on B waits for the invalidation that covers it.
            while vm.stats().retries == retries {
                thread::yield_now();
            }
            answer.send(()).unwrap();
        });
        assert_eq!(vcpu.fault(&mut idle, write(9)), Ok(Next::Emulate(Emulate::NoMemory)), "B is gone");
        let again = vcpu.fault(&mut idle, write(9));
        release.send(()).unwrap();
        assert_eq!(again, Ok(Next::Emulate(Emulate::NoMemory)), "B is still gone");
    });
    assert_eq!(vm.memory().translate(&mut idle, Gfn(9)), None);
}

/// Beside an active invalidation in its own 2 MiB a frame is confirmed alone: a host that panics during that fault
/// leaves nothing behind that serves the covered frame.
#[test]
fn a_host_that_panics_beside_an_invalidation_leaves_no_stamp_for_its_frames() {
    static PANICS: AtomicBool = AtomicBool::new(false);
    vm!(
        Npt4,
        |hva| {
            assert!(!PANICS.load(SeqCst), "on purpose");
            Some(page(hva))
        },
        idle,
        vm,
        vcpu
    );
    let (begun, end) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let (vm, begun, end) = (&vm, &begun, &end);
        scope.spawn(move || {
            let change = vm.invalidate(hva5(), Reason::Unmap).apply(&mut Idle::take().unwrap()).settle();
            begun.wait();
            end.wait();
            drop(change);
        });
        begun.wait();
        PANICS.store(true, SeqCst);
        assert!(catch_unwind(AssertUnwindSafe(|| vcpu.fault(&mut idle, write(3)))).is_err());
        PANICS.store(false, SeqCst);
        let retries = vm.stats().retries;
        scope.spawn(move || {
            while vm.stats().retries == retries {
                thread::yield_now();
            }
            end.wait();
        });
        assert_eq!(vcpu.fault(&mut idle, write(5)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
        assert!(vm.stats().retries > retries, "the fault waited for the invalidation that covers it");
    });
    drop(vm.memory().invalidate(Span::new(Gfn(0), Gfn(8)), Reason::Unmap).apply(&mut idle).settle());
}
