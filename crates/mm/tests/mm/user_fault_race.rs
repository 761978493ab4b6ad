//! Tests of faults that a user's thread serves, with all threads at once. No thread sleeps forever, and none
//! reads what no handler gave. Each check has a negative control.

use crate::fixture::*;
use crate::user_fault::{page_with, reader, until};
use crate::vm::guest_on;
use fastrand::Rng;
use slat::{Access, Fault, Gfn, Idle, PAGE_SIZE, Span, VcpuId};
use slat_mm::{AddressSpace, Arena, Backing, File, MmError, Place, Prot, Serve, Stopped, UserFaults};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::thread;

const PAGES: u64 = 96;

/// vCPUs and handlers run beside a host that drops, moves and protects. A vCPU reads only what a handler
/// copied.
#[test]
fn many_vcpus_and_handlers_lose_nothing() {
    for seed in 1..4 {
        let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
        let space = AddressSpace::builder(&arena).build().unwrap();
        let memory =
            space.mmap(Place::Fixed(at(0)), PAGES * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
        let mut idle = Idle::take().unwrap();
        let vm = guest_on(&space, &mut idle, PAGES);
        let faults = UserFaults::new(&space);
        faults.register(memory, Serve::Missing).unwrap();
        let (left, copied) = (AtomicU64::new(4), AtomicU64::new(0));
        let wrong: u64 = thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut idle = Idle::take().unwrap();
                    while let Ok(fault) = faults.read(&mut idle, None) {
                        let number = (fault.page.0 - at(0).0) / PAGE_SIZE;
                        match faults.copy(&mut idle, fault.page, &page_with(number + 1)) {
                            Ok(()) => copied.fetch_add(1, Relaxed),
                            Err(Stopped { why: MmError::AlreadyThere(_), .. }) => 0,
                            // The registration was closed meanwhile, and the host woke the sleepers.
                            Err(Stopped { why: MmError::NotServed(_), .. }) if left.load(SeqCst) == 0 => 0,
                            Err(other) => panic!("{other}"),
                        };
                    }
                });
            }
            let vcpus: Vec<_> = (0..4)
                .map(|number| {
                    let (vm, space, left) = (&vm, &space, &left);
                    scope.spawn(move || {
                        let mut idle = Idle::take().unwrap();
                        let mut vcpu = (number < 2).then(|| vm.vcpu(VcpuId(number)).unwrap());
                        let mut random = Rng::with_seed(seed * 100 + u64::from(number));
                        let mut wrong = 0;
                        for _ in 0..1000 {
                            let page = random.u64(..PAGES);
                            if let Some(vcpu) = &mut vcpu {
                                let fault = Fault { gpa: Gfn(page).gpa(), access: Access::Read };
                                let _ = vcpu.fault(&mut idle, fault).unwrap();
                            }
                            wrong += u64::from(get(space, &mut idle, page) != page + 1);
                        }
                        left.fetch_sub(1, SeqCst);
                        wrong
                    })
                })
                .collect();
            let mut random = Rng::with_seed(seed);
            while left.load(SeqCst) > 0 {
                // The host is not faster than pages come back.
                thread::yield_now();
                let first = random.u64(..PAGES);
                let range = pages(first, 1 + random.u64(..PAGES - first));
                match random.u64(..4) {
                    0 => space.dontneed(&mut idle, range).unwrap(),
                    1 => drop(space.migrate(&mut idle, range).unwrap()),
                    2 => faults.wake(range),
                    _ => {
                        space.mprotect(&mut idle, range, Prot::Read).unwrap();
                        space.mprotect(&mut idle, range, Prot::ReadWrite).unwrap();
                    }
                }
            }
            assert_eq!(faults.waiting(), (0, 0), "a thread still sleeps");
            faults.close(&mut idle);
            vcpus.into_iter().map(|vcpu| vcpu.join().unwrap()).sum()
        });
        assert_eq!(wrong, 0, "seed {seed}");
        assert!(copied.into_inner() >= PAGES);
        drop((vm, faults, space));
        assert_eq!((arena.stats().in_use, arena.stats().stale_writes), (0, 0));
    }
}

/// The same check finds a handler that gives a page before the contents.
#[test]
fn negative_control_a_page_given_before_its_contents_is_read_empty() {
    let mut machine = Machine::new();
    let memory = machine.map(0, 8);
    let faults = UserFaults::new(&machine.space);
    faults.register(memory, Serve::Missing).unwrap();
    thread::scope(|scope| {
        let reader = reader(scope, &machine.space, 1);
        let fault = faults.read(&mut machine.idle, None).unwrap();
        faults.zero_page(&mut machine.idle, Span::sized(fault.page, PAGE_SIZE)).unwrap();
        let read = reader.join().unwrap();
        machine.put(1, 2);
        assert_ne!(read, Ok(2));
    });
}

/// Threads fault pages in while `install` brings all of them in, in its own order. No thread reads the events.
/// Returns how many threads still sleep when every page is there.
fn stranded(seed: u64, waits: bool, install: impl Fn(&AddressSpace, &UserFaults, &mut Idle, u64)) -> usize {
    let arena = Arena::builder().limit(64 << 20).build().unwrap();
    let space = AddressSpace::builder(&arena).build().unwrap();
    let file = File::zeroed(&arena, PAGES * PAGE_SIZE);
    let map = |first| {
        let backing = Backing::Shared { file: file.clone(), offset: 0 };
        space.mmap(Place::Fixed(at(first)), PAGES * PAGE_SIZE, Prot::ReadWrite, backing).unwrap()
    };
    let faults = UserFaults::new(&space);
    faults.register(map(0), Serve::Missing).unwrap();
    map(PAGES);
    let shuffled = |seed: u64| {
        let mut order: Vec<_> = (0..PAGES).collect();
        Rng::with_seed(seed).shuffle(&mut order);
        order
    };
    thread::scope(|scope| {
        for number in 0..3 {
            let (space, order) = (&space, shuffled(seed + 1 + number));
            scope.spawn(move || {
                let mut idle = Idle::take().unwrap();
                for page in order {
                    get(space, &mut idle, page);
                }
            });
        }
        if waits {
            until(&faults, (3, 3));
        }
        let mut idle = Idle::take().unwrap();
        for page in shuffled(seed) {
            install(&space, &faults, &mut idle, page);
        }
        let asleep = faults.waiting().0;
        faults.close(&mut idle);
        asleep
    })
}

#[test]
fn a_wake_between_post_and_sleep_is_not_missed() {
    for seed in 0..200 {
        let asleep = stranded(seed, false, |_, faults, idle, page| {
            faults.copy(idle, at(page), &page_with(page)).unwrap();
        });
        assert_eq!(asleep, 0, "seed {seed}");
    }
}

#[test]
fn negative_control_pages_that_come_without_a_wake_strand_sleepers() {
    let asleep = stranded(0, true, |space, _, idle, page| {
        // Through the other mapping of the file.
        space.write(idle, at(PAGES + page), &[1]).unwrap();
    });
    assert_eq!(asleep, 3);
}
