//! A reader in a section, and a writer that reuses what the reader may have found.

use super::*;
use crate::loom_tests::{RACE, UnsafeCell, explore, finds, thread};
use crate::sync::prim::Release;
use std::sync::Arc;

/// Two places, and the index of the current one. loom reports a load of a place that is being reused.
#[derive(Default)]
struct Shared {
    current: AtomicU64,
    places: [UnsafeCell<u64>; 2],
}

impl Shared {
    fn read(&self) {
        // Relaxed: only sections and grace periods may order the two.
        let place = self.current.load(Relaxed);
        self.places[place as usize].with(|value| {
            // SAFETY: the write to a place is what loom checks against.
            unsafe { *value }
        });
    }

    fn reuse(&self) {
        self.places[0].with_mut(|value| {
            // SAFETY: as above.
            unsafe { *value = 1 }
        });
    }
}

/// A writer replaces the current place and reuses it after `wait`, while two sections read it.
fn replaced(wait: fn(&ReadSide)) -> impl Fn() + Send + Sync + 'static {
    replaced_beside(wait, |side, seat, shared| {
        for _ in 0..2 {
            let _section = side.enter(seat);
            shared.read();
        }
    })
}

/// A writer replaces the current place and reuses it after `wait`, beside a reader. loom has symmetric barriers alone.
fn replaced_beside(
    wait: fn(&ReadSide),
    reads: fn(&ReadSide, &Seat, &Shared),
) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new((ReadSide::new(1, Barrier::detect()), Shared::default()));
        let theirs = shared.clone();
        let reader = thread::spawn(move || {
            let (side, shared) = &*theirs;
            reads(side, &side.claim(0).expect("a free seat"), shared);
        });
        let (side, shared) = &*shared;
        shared.current.store(1, Relaxed);
        wait(side);
        shared.reuse();
        reader.join().expect("the reader ends");
    }
}

/// Waits by the barrier, without the looks that come first.
fn outlast(side: &ReadSide) {
    assert!(side.outlast(u32::MAX));
}

/// As under a baseline policy: the page that the section mapped is counted in the same word.
#[test]
fn a_grace_period_outlasts_a_section_that_is_counted_after_its_end() {
    explore(replaced_beside(outlast, |side, seat, shared| {
        let section = side.enter(seat);
        shared.read();
        drop(section);
        seat.mapped_under_lock();
    }));
}

#[test]
fn a_grace_period_outlasts_a_section_that_ends_by_counting_a_page() {
    explore(replaced_beside(outlast, |side, seat, shared| {
        let section = side.enter(seat);
        shared.read();
        section.end_mapped();
    }));
}

#[test]
fn a_grace_period_outlasts_a_section_before_a_light_one() {
    explore(replaced_beside(outlast, |side, seat, shared| {
        let section = side.enter(seat);
        shared.read();
        drop(section);
        let section = ReadSide::enter_light(seat);
        shared.read();
        drop(section);
    }));
}

#[test]
fn a_grace_period_outlasts_the_parts_of_a_section_that_rests() {
    explore(replaced_beside(outlast, |side, seat, shared| {
        let mut section = side.enter(seat);
        shared.read();
        section.yield_section(side);
        shared.read();
    }));
}

#[test]
fn a_grace_period_outlasts_every_section_that_began_before() {
    explore(replaced(ReadSide::synchronize));
    explore(replaced(outlast));
}

#[test]
fn mistake_reuse_without_a_grace_period() {
    assert!(finds(RACE, replaced(|_| {})));
}

/// A vCPU comes back from the guest and enters a section by a plain store, as with asymmetric barriers. The writer
/// reuses the place only if it saw every reader parked: otherwise it would use the heavy barrier, which loom lacks.
fn at_rest() -> impl Fn() + Send + Sync + 'static {
    || {
        let shared = Arc::new((ReadSide::new(1, Barrier::symmetric()), Shared::default()));
        let theirs = shared.clone();
        let reader = thread::spawn(move || {
            let (side, shared) = &*theirs;
            let seat = side.claim(0).expect("a free seat");
            shared.read();
            seat.park();
            seat.unpark(true);
            seat.word.store(INSIDE, Relaxed);
            shared.read();
            seat.word.store(OTHER, Release);
        });
        let (side, shared) = &*shared;
        shared.current.store(1, Relaxed);
        if side.all_parked() {
            shared.reuse();
        }
        reader.join().expect("the reader ends");
    }
}

#[test]
fn a_seat_that_was_seen_parked_sees_what_was_replaced() {
    explore(at_rest());
}

/// A vCPU enters sections by plain stores, as with asymmetric barriers, and answers between them when it is asked.
fn asked() -> impl Fn() + Send + Sync + 'static {
    || {
        let shared = Arc::new((ReadSide::new(1, Barrier::symmetric()), Shared::default()));
        // Never given back: that would be a quiescent moment.
        core::mem::forget(shared.0.claim(0));
        let theirs = shared.clone();
        let reader = thread::spawn(move || {
            let (side, shared) = &*theirs;
            let seat = side.seats.first().first().expect("there is one");
            for _ in 0..2 {
                if seat.is_asked() {
                    seat.answer();
                }
                // As `enter_light`, whose compiler fence loom treats as more.
                let now = seat.word.load(Relaxed);
                seat.word.store(now + INSIDE, Release);
                shared.read();
                seat.word.store(now + OTHER, Release);
            }
        });
        let (side, shared) = &*shared;
        shared.current.store(1, Relaxed);
        if side.all_parked() {
            shared.reuse();
        }
        reader.join().expect("the reader ends");
    }
}

#[test]
fn a_seat_that_has_answered_sees_what_was_replaced() {
    explore(asked());
}

/// A seat goes from one holder to the next, with its plain word.
fn handed_on() -> impl Fn() + Send + Sync + 'static {
    || {
        let shared = Arc::new((ReadSide::new(1, Barrier::symmetric()), UnsafeCell::new(0)));
        let theirs = shared.clone();
        let hold = |(side, count): &(ReadSide, UnsafeCell<u64>)| {
            let mut patience = Patience::default();
            // The only seat.
            let seat = loop {
                match side.try_borrow(0) {
                    Some(seat) => break seat,
                    None => patience.wait(),
                }
            };
            drop(side.enter(&seat));
            // SAFETY: held by one thread at a time, which loom checks.
            count.with_mut(|count| unsafe { *count += 1 });
        };
        let other = thread::spawn(move || hold(&theirs));
        hold(&shared);
        other.join().expect("it ends");
        assert_eq!(
            shared.0.seats.first().first().expect("there is one").word.load(Relaxed),
            2 * OTHER,
            "no section is lost"
        );
    }
}

#[test]
fn a_seat_has_one_holder_at_a_time() {
    explore(handed_on());
}

/// All seats are taken, so a reader makes another, and enters there. A writer replaces and reuses its place.
fn added(wait: fn(&ReadSide)) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new((ReadSide::new(0, Barrier::symmetric()), Shared::default()));
        let theirs = shared.clone();
        let reader = thread::spawn(move || {
            let (side, shared) = &*theirs;
            let seat = side.borrow(0);
            let _section = side.enter(&seat);
            shared.read();
        });
        let (side, shared) = &*shared;
        shared.current.store(1, Relaxed);
        wait(side);
        shared.reuse();
        reader.join().expect("the reader ends");
    }
}

#[test]
fn a_section_on_a_seat_that_was_added_is_outlasted() {
    explore(added(ReadSide::synchronize));
    explore(added(outlast));
}
