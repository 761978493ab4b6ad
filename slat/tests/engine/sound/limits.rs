//! Many of everything at once: each grows, or is refused by a typed answer; no call waits for its own thread.

use super::common::{ends, hva5, page, ram, vm, write};
use slat::table::formats::Npt4;
use slat::*;
use std::sync::Barrier;
use std::thread;

/// Host pages of the first slot, and of regions that no slot has.
fn somewhere(i: u64) -> Span<Hva> {
    match i % 4 {
        0 => hva5(),
        1 => Span::sized(Hva(i << 21), 4096),
        2 => Span::sized(Hva(0x4000_0000), 3 << 21),
        // Wide.
        _ => Span::sized(Hva(0), 1 << 36),
    }
}

#[test]
fn a_thread_begins_applies_and_ends_a_thousand_invalidations() {
    assert!(ends(|| {
        vm!(Npt4, |hva| Some(page(hva)), idle, vm, vcpu);
        for many in [33, 100, 1000] {
            let all: Vec<_> = (0..many).map(|i| vm.invalidate(somewhere(i), Reason::Clear)).collect();
            let mut all: Vec<_> = all.into_iter().map(|change| change.apply(&mut idle).settle()).collect();
            // The oldest ends first, then the newest.
            let last = all.split_off(all.len() / 2);
            drop(all);
            last.into_iter().rev().for_each(drop);
            assert_eq!(
                vcpu.fault(&mut idle, write(5)),
                Ok(Next::Resume(Resume::Mapped(Level::K4))),
                "{many}"
            );
        }
    }));
}

#[test]
fn where_all_places_are_taken_a_thread_that_may_not_wait_is_told_so() {
    assert!(ends(|| {
        vm!(Npt4, |hva| Some(page(hva)), idle, vm, _vcpu);
        let mut all: Vec<_> = (0..4032)
            .map(|i| vm.try_invalidate(Span::sized(Hva(i << 21), 4096), Reason::Clear).unwrap())
            .collect();
        assert_eq!(vm.try_invalidate(hva5(), Reason::Clear).err(), Some(Again));
        all.pop();
        drop(vm.try_invalidate(hva5(), Reason::Clear).unwrap().apply(&mut idle).settle());
        assert_eq!(vm.memory().translate(&mut idle, Gfn(5)), None);
    }));
}

/// Changes one page inside `depth` nested events over it, each of which tells it.
fn nested(vm: &impl SecondaryMmu, idle: &mut Idle, event: Event, depth: usize) -> usize {
    let mut reached = 0;
    let outcome = vm.around(idle, event, &mut |idle, told| {
        reached = 1 + if depth > 1 { nested(vm, idle, event, depth - 1) } else { 0 };
        told.changed(idle, event.hvas, None);
        told.settle(idle, event.hvas);
    });
    assert_eq!(outcome.is_err(), reached == 0);
    reached
}

#[test]
fn events_nest_a_hundred_deep_or_say_again() {
    assert!(ends(|| {
        vm!(Npt4, |hva| Some(page(hva)), idle, vm, vcpu);
        for why in [Reason::Unmap, Reason::Reclaim] {
            let event = Event::new(hva5(), why);
            assert_eq!(
                nested(&vm, &mut idle, event, 100),
                100,
                "an event that may block has what it asks for"
            );
            let reached = nested(&vm, &mut idle, Event { may_block: false, ..event }, 100);
            assert!((1..100).contains(&reached), "{reached}: one that may not ends where there is no more");
            assert_eq!(vcpu.fault(&mut idle, write(5)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
        }
    }));
}

/// Threads hold a seat each, and then look at the slots, for which each needs one more.
#[test]
fn two_hundred_threads_that_hold_a_version_of_the_slots_look_at_the_next_one() {
    assert!(ends(|| {
        vm!(Npt4, |hva| Some(page(hva)), idle, vm, _vcpu);
        let (vm, all) = (&vm, &Barrier::new(200));
        thread::scope(|scope| {
            for i in 0..200 {
                scope.spawn(move || {
                    let (mut idle, slots) = (Idle::take().unwrap(), vm.memory());
                    let look = || {
                        all.wait();
                        assert_eq!(slots.len(), 1);
                        // No thread gives its seat back before all have looked.
                        all.wait();
                    };
                    if i % 2 == 0 {
                        let snapshot = slots.snapshot(&mut idle);
                        look();
                        assert_eq!(snapshot.len(), 1);
                    } else {
                        let walk = vm.memory().lockless(&mut idle);
                        look();
                        assert!(walk.translate(Gfn(5)).is_some());
                    }
                });
            }
        });
        vm.memory().commit(&mut idle, |tx| tx.delete(SlotId(0))).unwrap();
        assert!(vm.memory().is_empty(), "a grace period looks at all of them");
    }));
}

#[test]
fn a_thread_holds_a_thousand_harvests() {
    assert!(ends(|| {
        vm!(Npt4, |hva| Some(page(hva)), idle, vm, vcpu);
        vm.memory().commit(&mut idle, |tx| tx.create(ram(1, 64, 64, 1 << 40).log_dirty())).unwrap();
        let mut held = Vec::new();
        for i in 0..1000 {
            let _ = vcpu.fault(&mut idle, write(64 + i % 64)).unwrap();
            held.push(vm.memory().harvest_all(&mut idle).unwrap());
        }
        assert_eq!(held.iter().map(Harvest::pages).sum::<u64>(), 1000);
        drop(held);
        let again = vm.memory().harvest_all(&mut idle).unwrap();
        assert_eq!(again.pages(), 64, "what is given back is dirty");
        again.commit();
    }));
}
