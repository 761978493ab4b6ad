//! A fault looks a slot up between its stamp and its second look at W, beside a transaction.

use super::super::rules::Limits;
use super::*;
use crate::loom_tests::{RACE, explore, finds, finds_seeded};
use crate::notify::active::Active;
use crate::seeded::Bug;
use loom::cell::UnsafeCell;
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    /// The transaction ends before it publishes.
    EndsFirst,
    /// The fault does not look at W again.
    NoSecondLook,
}

/// A confirmed stamp and the version of the slots that was found under it are of one moment; what a version is made of
/// was written before it could be found.
fn looks_up(mistake: Mistake) -> impl Fn() + Send + Sync + 'static {
    move || {
        let gfns = Span::new(Gfn(0), Gfn(1));
        let nowhere = Span::new(Hva(0), Hva(0));
        let shared = Arc::new((
            Active::new(),
            SlotSets::new(Limits::default(), crate::DirtyLog::bitmap()),
            [UnsafeCell::new(0), UnsafeCell::new(0)],
        ));
        let theirs = shared.clone();
        let fault = loom::thread::spawn(move || {
            let (active, sets, made_of) = &*theirs;
            let stamp = active.stamp();
            let number = sets.number();
            made_of[number as usize].with(|value| {
                // SAFETY: loom checks that it was written before.
                unsafe { *value }
            });
            let confirmed = active.confirm(stamp, gfns, nowhere).is_ok();
            if confirmed || mistake == Mistake::NoSecondLook && stamp.is_quiet() {
                // The first invalidation published version 1.
                let newest = stamp.newest() >= crate::table::Word::hole(crate::table::Version(1));
                assert_eq!(newest, number == 1, "the slots are of another moment than the stamp");
            }
        });
        let (active, sets, made_of) = &*shared;
        let change = active.begin(gfns, nowhere);
        if mistake == Mistake::EndsFirst {
            let under = change.version();
            drop(change);
            publish(sets, under, &made_of[1]);
        } else {
            publish(sets, change.version(), &made_of[1]);
            drop(change);
        }
        fault.join().expect("the fault ends");
    }
}

fn publish(sets: &SlotSets, under: crate::table::Version, made_of: &UnsafeCell<u64>) {
    made_of.with_mut(|value| {
        // SAFETY: nobody has found it yet, which loom checks.
        unsafe { *value = 1 }
    });
    let set = sets.writer.lock().map.set();
    // SAFETY: one writer, and cells enough.
    unsafe { sets.publish(set, under, false) };
}

#[test]
fn a_confirmed_stamp_and_its_slots_are_of_one_moment() {
    explore(looks_up(Mistake::None));
}

#[test]
fn mistakes_about_the_version() {
    for bug in [Bug::PublishRelaxed, Bug::NumberRelaxed] {
        finds_seeded(bug, RACE, looks_up(Mistake::None));
    }
}

#[test]
fn mistake_ending_before_publishing() {
    assert!(finds("of another moment", looks_up(Mistake::EndsFirst)));
}

#[test]
fn mistake_no_second_look_at_w() {
    assert!(finds("of another moment", looks_up(Mistake::NoSecondLook)));
}
