//! An exclusive walk and a lockless one, which no lock excludes: the read side orders them under every policy. The
//! locks themselves are not explored.

use super::*;
use crate::loom_tests::{RACE, UnsafeCell, explore, finds, thread};
use crate::sync::barrier::Barrier;
use crate::sync::mode::{Exclusive, Lockless};
use crate::sync::prim::{AtomicU64, Relaxed};
use std::sync::Arc;

/// The exclusive walk replaces a place, and reuses it.
fn replaces(baseline: Baseline, grace: bool) -> impl Fn() + Send + Sync + 'static {
    move || {
        let reads = ReadSide::new(2, Barrier::symmetric());
        let places = [UnsafeCell::new(0), UnsafeCell::new(0)];
        let shared = Arc::new((Lock::new(baseline), reads, AtomicU64::new(0), places));
        let theirs = shared.clone();
        let lockless = thread::spawn(move || {
            let (lock, reads, current, places) = &*theirs;
            let seat = reads.claim(1).expect("a free seat");
            let mut gate = lock.enter::<Lockless>(reads, &seat);
            for _ in 0..2 {
                let place = current.load(Relaxed);
                places[place as usize].with(|value| {
                    // SAFETY: the write to a place is what loom checks against.
                    unsafe { *value }
                });
                gate.yield_section(reads);
            }
        });
        let (lock, reads, current, places) = &*shared;
        let seat = reads.claim(0).expect("a free seat");
        let gate = lock.enter::<Exclusive>(reads, &seat);
        current.store(1, Relaxed);
        drop(gate);
        if grace {
            reads.synchronize();
        }
        places[0].with_mut(|value| {
            // SAFETY: as above.
            unsafe { *value = 1 }
        });
        drop(seat);
        lockless.join().expect("it ends");
    }
}

#[test]
fn an_exclusive_walk_waits_for_lockless_ones() {
    explore(replaces(Baseline::default(), true));
}

#[test]
fn mistake_relying_on_the_lock() {
    assert!(finds(RACE, replaces(Baseline::default(), false)));
}

#[cfg(feature = "baselines")]
mod with_a_lock {
    use super::*;

    #[test]
    fn an_exclusive_walk_with_a_lock_waits_for_lockless_ones() {
        explore(replaces(Baseline::EXCLUSIVE, true));
    }

    #[test]
    fn mistake_relying_on_the_lock() {
        assert!(finds(RACE, replaces(Baseline::EXCLUSIVE, false)));
    }
}
