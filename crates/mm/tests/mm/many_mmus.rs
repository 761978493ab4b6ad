//! Tests of many secondary MMUs on one address space. All hear of every change. They come and go, and none
//! disturbs the others.

use crate::fixture::*;
use crate::listener::Listener;
use crate::vm::coherent;
use slat::baselines::{Baseline, MmuLock};
use slat::table::formats::{Ept4NoAd, Ept5, Npt4};
use slat::{
    Access, Again, Event, Fault, Format, Gfn, HostError, Idle, PAGE_SIZE, Pages, Reason, SecondaryMmu, Slot,
    SlotId, VcpuId, Vm, Young,
};
use slat_mm::{AddressSpace, HostView, MmError, Place, Prot};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

const FRAMES: u64 = 1024;

fn guest<F: Format>(space: &Arc<AddressSpace>, idle: &mut Idle, lock: MmuLock) -> Arc<Vm<F, HostView>> {
    let vm =
        Arc::new(Vm::builder(HostView::new(space)).baseline(Baseline::NONE.mmu_lock(lock)).build().unwrap());
    space.register(&vm);
    vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), FRAMES, BASE))).unwrap();
    vm
}

fn touch<F: Format>(vm: &Vm<F, HostView>, idle: &mut Idle, access: Access) {
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for gfn in (0..FRAMES).step_by(3).map(Gfn) {
        // A page that is protected or unmapped at the moment refuses the access.
        let _ = vcpu.fault(idle, Fault { gpa: gfn.gpa(), access });
    }
}

/// A kind of change, with its name.
type Row = (&'static str, fn(&AddressSpace, &mut Idle));

const CHANGES: [Row; 9] = [
    ("migrate", |space, idle| assert!(space.migrate(idle, pages(0, 700)).unwrap() > 0)),
    ("fork", |space, idle| drop(space.fork(idle).unwrap())),
    ("mprotect", |space, idle| space.mprotect(idle, pages(100, 500), Prot::Read).unwrap()),
    ("and back", |space, idle| space.mprotect(idle, pages(100, 500), Prot::ReadWrite).unwrap()),
    ("dontneed", |space, idle| space.dontneed(idle, pages(500, 30)).unwrap()),
    ("clear soft-dirty", |space, idle| space.clear_soft_dirty(idle, pages(0, FRAMES)).unwrap()),
    ("mremap", |space, idle| {
        let (old, len) = (pages(600, 100), 100 * PAGE_SIZE);
        let there = space.mremap(idle, old, len, Place::Fixed(at(5000))).unwrap();
        space.mremap(idle, there, len, Place::Fixed(old.start)).unwrap();
    }),
    ("munmap", |space, idle| space.munmap(idle, pages(900, 50)).unwrap()),
    ("exit", |space, idle| space.exit(idle).unwrap()),
];

#[test]
fn guests_of_different_formats_all_follow_every_change() {
    for thp in [false, true] {
        let mut machine = if thp { Machine::huge() } else { Machine::new() };
        machine.map(0, FRAMES);
        let (space, idle) = (&machine.space, &mut machine.idle);
        let npt = guest::<Npt4>(space, idle, MmuLock::None);
        let ept = guest::<Ept5>(space, idle, MmuLock::ReadWrite);
        let old = guest::<Ept4NoAd>(space, idle, MmuLock::Exclusive);
        for (name, change) in CHANGES {
            for access in [Access::Write, Access::Read] {
                touch(&npt, idle, access);
                touch(&ept, idle, access);
                touch(&old, idle, access);
            }
            // Where one guest broke a share, the other guests lost the page.
            coherent(&npt, idle, FRAMES);
            coherent(&ept, idle, FRAMES);
            coherent(&old, idle, FRAMES);
            assert!(
                [npt.stats(), ept.stats(), old.stats()].iter().all(|stats| stats.leaves != [0; 3]),
                "{name}"
            );
            change(space, idle);
            coherent(&npt, idle, FRAMES);
            coherent(&ept, idle, FRAMES);
            coherent(&old, idle, FRAMES);
        }
        npt.collect(idle);
        ept.collect(idle);
        old.collect(idle);
        assert_eq!(
            [npt.stats(), ept.stats(), old.stats()].map(|stats| stats.leaves),
            [[0; 3]; 3],
            "after exit"
        );
        drop((npt, ept, old));
        assert!(machine.all_free());
    }
}

#[test]
fn an_unregistered_mmu_is_told_to_release_everything_and_then_nothing() {
    let mut machine = Machine::new();
    machine.map(0, 8);
    machine.number(0, 8);
    let (first, second) = (Arc::new(Listener::default()), Arc::new(Listener::default()));
    machine.space.register(&first);
    machine.space.register(&second);
    machine.space.register(&second); // is notified only once
    machine.space.dontneed(&mut machine.idle, pages(0, 1)).unwrap();
    assert_eq!([&first, &second].map(|mmu| mmu.events.lock().drain(..).count()), [1, 1]);

    assert!(machine.space.unregister(&mut machine.idle, &first));
    let told = std::mem::take(&mut *first.events.lock());
    assert_eq!(told.len(), 1);
    assert!(told[0].why == Reason::Exit && told[0].may_block && told[0].hvas.covers(&pages(0, 1 << 20)));
    assert_eq!(machine.space.stats().notified(Reason::Exit), 1);
    assert!(!machine.space.unregister(&mut machine.idle, &first));
    machine.space.migrate(&mut machine.idle, pages(0, 8)).unwrap();
    machine.space.exit(&mut machine.idle).unwrap();
    assert!(first.events.lock().is_empty(), "no notification after unregistering");
    assert_eq!(
        second.events.lock().iter().map(|event| event.why).collect::<Vec<_>>(),
        [Reason::Migrate, Reason::Exit]
    );
    assert_eq!((first.open(), second.open()), (0, 0));
}

#[test]
fn after_exit_everything_is_gone_and_faults_say_so() {
    let mut machine = Machine::huge();
    machine.map(0, 1024);
    machine.number(0, 600);
    let vm = guest::<Npt4>(&machine.space, &mut machine.idle, MmuLock::None);
    touch(&vm, &mut machine.idle, Access::Write);
    machine.recorder.take();
    machine.space.exit(&mut machine.idle).unwrap();
    assert_eq!(machine.recorder.only().why, Reason::Exit);
    let fault = vm
        .vcpu(VcpuId(0))
        .unwrap()
        .fault(&mut machine.idle, Fault { gpa: Gfn(5).gpa(), access: Access::Read });
    assert_eq!(fault, Err(HostError::Fault.into()));
    let (space, idle) = (&machine.space, &mut machine.idle);
    assert_eq!(space.fault(idle, at(5), Access::Read), Err(MmError::Exited));
    assert_eq!(space.write(idle, at(5), b"x"), Err(MmError::Exited));
    assert_eq!(space.fork(idle).err(), Some(MmError::Exited));
    let mapped = space.mmap(Place::Anywhere, PAGE_SIZE, Prot::Read, slat_mm::Backing::Anonymous);
    assert_eq!(mapped, Err(MmError::Exited));
    assert_eq!(space.exit(idle), Ok(()), "a second exit does nothing");
    assert!(machine.recorder.take().is_empty());
    let left = machine.arena.stats();
    assert_eq!(left.in_use, left.tables, "pages are gone, and tables go with the address space");
    drop(vm);
    assert!(machine.all_free());
}

/// A listener against the rules: it refuses what may wait.
struct Stubborn;

impl SecondaryMmu for Stubborn {
    fn around(
        &self,
        _: &mut Idle,
        _: Event,
        _: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        Err(Again)
    }
}

/// Changes call listeners in the order of registration. Those before the refusing one have begun, and those
/// after it have not.
#[test]
fn every_begin_has_an_end_whatever_one_mmu_answers() {
    let mut machine = Machine::new();
    machine.map(0, 8);
    machine.number(0, 8);
    let mmus: Vec<_> = (0..3).map(|_| Arc::new(Listener::default())).collect();
    for mmu in &mmus {
        machine.space.register(mmu);
    }
    for refusing in 0..3 {
        mmus[refusing].again.store(true, SeqCst);
        assert_eq!(machine.space.reap(&mut machine.idle, pages(0, 8)), Err(MmError::Again));
        mmus[refusing].again.store(false, SeqCst);
        let begun: Vec<_> = mmus.iter().map(|mmu| mmu.events.lock().drain(..).count()).collect();
        assert_eq!(begun.iter().sum::<usize>(), refusing, "{begun:?}");
        assert!(mmus.iter().all(|mmu| mmu.open() == 0));
    }
    assert_eq!(machine.get(3), 3, "a refused change took effect");
    mmus[1].again.store(true, SeqCst);
    machine.space.dontneed(&mut machine.idle, pages(0, 8)).unwrap();
    assert_eq!(machine.get(3), 0, "a change that may wait ignores a refusal");
    machine.number(0, 8);
    let stubborn = Arc::new(Stubborn);
    machine.space.register(&stubborn);
    machine.space.register(&mmus[2]); // called after the stubborn one
    mmus[2].events.lock().clear();
    machine.space.munmap(&mut machine.idle, pages(0, 8)).unwrap();
    assert!(machine.look(3).is_none(), "a listener that refuses to wait cannot keep a page");
    assert_eq!((mmus[2].events.lock().len(), mmus[2].open()), (1, 0), "the listeners after it are told");
}

#[test]
fn a_test_for_young_stops_at_the_first_and_clearing_asks_all() {
    let mut machine = Machine::new();
    let mmus: Vec<_> = (0..3).map(|_| Arc::new(Listener::default())).collect();
    for mmu in &mmus {
        machine.space.register(mmu);
    }
    let mut ask = |young| {
        let found = machine.space.young(&mut machine.idle, pages(0, 8), young);
        (found, [0, 1, 2].map(|mmu| mmus[mmu].asked.swap(0, SeqCst)))
    };
    assert_eq!(ask(Young::Test), (false, [1, 1, 1]));
    mmus[1].is_young.store(true, SeqCst);
    assert_eq!(ask(Young::Test), (true, [1, 1, 0]));
    assert_eq!(ask(Young::Clear), (true, [1, 1, 1]));
    assert_eq!(ask(Young::ClearAndFlush), (true, [1, 1, 1]));
}

#[test]
fn a_page_is_young_until_it_is_cleared() {
    what_is_used_is_young(Machine::new());
}

#[test]
fn a_huge_page_is_young_until_it_is_cleared() {
    what_is_used_is_young(Machine::huge());
}

fn what_is_used_is_young(mut machine: Machine) {
    machine.map(0, FRAMES);
    let (space, idle) = (&machine.space, &mut machine.idle);
    let (npt, old) =
        (guest::<Npt4>(space, idle, MmuLock::None), guest::<Ept4NoAd>(space, idle, MmuLock::None));
    for cleared in [Young::Clear, Young::ClearAndFlush] {
        assert!(!space.young(idle, pages(0, FRAMES), Young::Test));
        touch(&npt, idle, Access::Read);
        touch(&old, idle, Access::Read);
        assert!(space.young(idle, pages(0, 6), Young::Test), "the test changes nothing");
        assert!(space.young(idle, pages(0, 6), cleared));
        assert!(!space.young(idle, pages(0, 6), Young::Test), "the bits of both MMUs");
        assert!(space.young(idle, pages(6, FRAMES - 6), cleared));
    }
}

/// Listeners come and go while other threads change mappings and fault. Each listener hears only whole changes,
/// and its release last.
#[test]
fn listeners_come_and_go_under_load() {
    const ROUNDS: u64 = 150;
    let machine = Machine::new();
    machine.map(0, FRAMES);
    let (space, over) = (&machine.space, AtomicBool::new(false));
    let stays = Arc::new(Listener::default());
    space.register(&stays);
    let heard = thread::scope(|scope| {
        scope.spawn(|| {
            let mut idle = Idle::take().unwrap();
            for round in 0.. {
                let range = pages(round * 37 % 900, 100);
                space.write(&mut idle, range.start, &[1; 3000]).unwrap();
                match round % 3 {
                    0 => assert!(space.migrate(&mut idle, range).unwrap() > 0),
                    1 => space.dontneed(&mut idle, range).unwrap(),
                    _ => drop(space.fork(&mut idle).unwrap()),
                }
                if over.load(SeqCst) {
                    return;
                }
            }
        });
        let comers = [0, 1].map(|number| {
            scope.spawn(move || {
                let (mut idle, mut heard) = (Idle::take().unwrap(), 0);
                for round in 0..ROUNDS {
                    let mmu = Arc::new(Listener::default());
                    space.register(&mmu);
                    space.write(&mut idle, at((round * 2 + number) % FRAMES), b"!").unwrap();
                    while round % 8 == 0 && mmu.begun.load(SeqCst) == 0 {
                        thread::yield_now();
                    }
                    assert!(space.unregister(&mut idle, &mmu));
                    let told = mmu.events.lock().len();
                    assert_eq!(mmu.open(), 0, "a change is in progress after it unregistered");
                    assert_eq!(mmu.events.lock()[told - 1].why, Reason::Exit);
                    if round % 8 == 0 {
                        space.dontneed(&mut idle, pages(0, 1)).unwrap();
                        assert_eq!(mmu.events.lock().len(), told, "a notification came after the release");
                    }
                    heard += told as u64 - 1;
                }
                heard
            })
        });
        let heard: u64 = comers.into_iter().map(|comer| comer.join().unwrap()).sum();
        over.store(true, SeqCst);
        heard
    });
    assert!(heard > 0, "the listeners heard of no change");
    assert_eq!(stays.open(), 0);
    assert!(stays.events.lock().iter().all(|event| event.why != Reason::Exit));
}
