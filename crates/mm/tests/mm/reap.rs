//! Tests of the reaper, which never sleeps. Where it would have to wait, it reports so at once: nothing has
//! changed, and every listener that began has ended.

use crate::fixture::*;
use crate::listener::Listener;
use crate::vm::{coherent, guest_on};
use slat::baselines::{Baseline, MmuLock};
use slat::table::formats::Npt4;
use slat::{Access, Fault, Gfn, Idle, Level, PAGE_SIZE, Reason, VcpuId, Vm};
use slat_mm::{AddressSpace, Backing, File, HostView, MmError, Place, Prot};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

#[test]
fn anonymous_pages_go_and_others_stay() {
    let mut machine = Machine::new();
    machine.map(0, 4);
    let file = File::with_contents(&machine.arena, vec![b'a'; 4 * PAGE_SIZE as usize]);
    for (first, backing) in [
        (4, Backing::Shared { file: file.clone(), offset: 0 }),
        (6, Backing::Private { file: file.clone(), offset: 0 }),
    ] {
        machine.space.mmap(Place::Fixed(at(first)), 2 * PAGE_SIZE, Prot::ReadWrite, backing).unwrap();
    }
    machine.map(8, 4);
    machine.number(0, 12);
    machine.recorder.take();
    assert_eq!(machine.space.reap(&mut machine.idle, pages(2, 8)), Ok(4));
    let seen = machine.recorder.take();
    let told: Vec<_> = seen.iter().map(|seen| (seen.why, seen.may_block, seen.hvas)).collect();
    assert_eq!(told, [(Reason::Unmap, false, pages(2, 2)), (Reason::Unmap, false, pages(8, 2))]);
    for (page, there) in (0..12).zip([0, 1, 0, 0, 4, 5, 6, 7, 0, 0, 10, 11]) {
        assert_eq!(machine.get(page), there, "page {page}");
    }
    let stats = machine.space.stats();
    assert_eq!((stats.reaped, stats.reap_again), (4, 0));
    assert!(machine.space.reap(&mut machine.idle, pages(3, 0)).is_err());
    drop(file);
    assert!(machine.all_free());
}

#[test]
fn a_huge_page_goes_whole_or_stays_and_no_memory_is_taken() {
    let mut machine = Machine::huge();
    machine.map(0, 1024);
    machine.number(0, 1);
    machine.number(512, 1);
    let in_use = machine.arena.stats().in_use;
    assert_eq!(machine.space.reap(&mut machine.idle, pages(8, 1016)), Ok(1));
    assert_eq!(machine.arena.stats().in_use, in_use - 512);
    assert_eq!((machine.get(0), machine.get(512)), (0, 0));
    assert_eq!(machine.look(8).unwrap().level, Level::M2, "the huge page was divided");
    assert!(machine.all_free());
}

/// A guest with all pages mapped, on an address space of 8.
fn busy() -> (Machine, Arc<Vm<Npt4, HostView>>) {
    let mut machine = Machine::new();
    machine.map(0, 8);
    let vm = guest_on(&machine.space, &mut machine.idle, 8);
    refault(&mut machine, &vm);
    machine.number(0, 8);
    (machine, vm)
}

/// The guest has every page, or faults it in.
fn refault(machine: &mut Machine, vm: &Vm<Npt4, HostView>) {
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for gfn in (0..8).map(Gfn) {
        let _ = vcpu.fault(&mut machine.idle, Fault { gpa: gfn.gpa(), access: Access::Write }).unwrap();
    }
}

fn nothing_was_lost(mut machine: Machine, vm: Arc<Vm<Npt4, HostView>>) {
    for page in 0..8 {
        assert_eq!(machine.get(page), page);
    }
    refault(&mut machine, &vm);
    coherent(&vm, &mut machine.idle, 8);
    assert!(machine.space.stats().reap_again > 0);
    drop(vm);
    assert!(machine.all_free());
}

#[test]
fn with_every_slot_for_invalidations_taken_it_says_again() {
    let (mut machine, vm) = busy();
    let mut open = Vec::new();
    let again = loop {
        open.push(vm.invalidate(pages(1 << 20, 1), Reason::Clear));
        assert!(open.len() < 10_000, "there are too many slots");
        machine.number(0, 8);
        refault(&mut machine, &vm);
        match machine.space.reap(&mut machine.idle, pages(0, 8)) {
            Ok(8) => {}
            other => break other,
        }
    };
    assert_eq!(again, Err(MmError::Again));
    assert!(vm.memory().translate(&mut machine.idle, Gfn(3)).is_some(), "not even this VM lost a page");
    open.pop();
    assert_eq!(machine.space.reap(&mut machine.idle, pages(0, 8)), Ok(8), "one slot is enough");
    machine.number(0, 8);
    drop(open);
    nothing_was_lost(machine, vm);
}

#[test]
fn a_vm_with_a_lock_says_again_and_those_before_it_have_ended() {
    for lock in [MmuLock::Exclusive, MmuLock::ReadWrite] {
        let (mut machine, vm) = busy();
        let locked = Vm::<Npt4, _>::builder(HostView::new(&machine.space))
            .baseline(Baseline::NONE.mmu_lock(lock))
            .build()
            .unwrap();
        let locked = Arc::new(locked);
        machine.space.register(&locked);
        machine.recorder.take();
        assert_eq!(machine.space.reap(&mut machine.idle, pages(0, 8)), Err(MmError::Again));
        let seen = machine.recorder.only();
        assert_eq!(seen.before, seen.after, "the change began and ended, and nothing changed");
        assert!(machine.space.unregister(&mut machine.idle, &locked));
        drop(locked);
        nothing_was_lost(machine, vm);
    }
}

/// Another thread reaps. The test waits for that thread, so the thread must not wait for the test.
fn reap_beside(space: &Arc<AddressSpace>, answers: &Arc<AtomicU64>) -> Box<dyn FnOnce() + Send> {
    let (space, answers) = (space.clone(), answers.clone());
    Box::new(move || {
        let reaper = thread::spawn(move || {
            let mut idle = Idle::take().unwrap();
            assert_eq!(space.reap(&mut idle, pages(0, 8)), Err(MmError::Again));
            answers.fetch_add(1, SeqCst);
        });
        reaper.join().unwrap();
    })
}

#[test]
fn while_listeners_come_or_go_it_says_again() {
    let (mut machine, vm) = busy();
    let (listener, answers) = (Arc::new(Listener::default()), Arc::new(AtomicU64::new(0)));
    machine.space.register(&listener);
    *listener.during.lock() = Some(reap_beside(&machine.space, &answers));
    assert!(machine.space.unregister(&mut machine.idle, &listener));
    assert_eq!(answers.load(SeqCst), 1);
    assert_eq!(listener.open(), 0);
    drop(listener);
    nothing_was_lost(machine, vm);
}

#[test]
fn while_a_page_lock_is_held_it_says_again() {
    let (mut machine, vm) = busy();
    let child = machine.space.fork(&mut machine.idle).unwrap();
    let (listener, answers) = (Arc::new(Listener::default()), Arc::new(AtomicU64::new(0)));
    machine.space.register(&listener);
    *listener.at_page.lock() = Some(reap_beside(&machine.space, &answers));
    machine.put(3, 3); // breaks a share, and reports the copy under the page lock
    assert_eq!(answers.load(SeqCst), 1);
    assert_eq!(listener.open(), 0);
    drop((listener, child));
    nothing_was_lost(machine, vm);
}

/// The negative control of the two tests above. A change that waits would hang there. A change that need not
/// wait runs.
#[test]
fn where_no_thread_holds_what_it_needs_it_reaps_beside_another_change() {
    let (mut machine, vm) = busy();
    machine.map(600, 8);
    machine.number(600, 8);
    let (listener, reaped) = (Arc::new(Listener::default()), Arc::new(AtomicU64::new(0)));
    machine.space.register(&listener);
    let (space, sum) = (machine.space.clone(), reaped.clone());
    *listener.during.lock() = Some(Box::new(move || {
        let reaper = thread::spawn(move || {
            let mut idle = Idle::take().unwrap();
            sum.store(space.reap(&mut idle, pages(600, 8)).unwrap(), SeqCst);
        });
        reaper.join().unwrap();
    }));
    machine.space.dontneed(&mut machine.idle, pages(0, 1)).unwrap();
    assert_eq!(reaped.load(SeqCst), 8);
    drop((listener, vm));
    assert!(machine.all_free());
}
