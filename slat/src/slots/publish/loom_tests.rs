//! Loom tests of a fault that looks up a slot between epoch and stamp, beside a transaction.

use super::super::Limits;
use super::*;
use crate::Level;
use crate::active::{Active, Page};
use crate::addr::{Gfn, Hva, Span};
use crate::loom_tests::{UnsafeCell, explore, finds, thread};
use crate::table::entry::{Entry, Word};
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    /// The transaction ends before it publishes.
    EndsFirst,
}

/// Checks that a hole left by the transaction is filled only with a page of the slots that it publishes, and that a
/// version is written before a reader finds it.
fn looks_up(mistake: Mistake) -> impl Fn() + Send + Sync + 'static {
    move || {
        let gfns = Span::new(Gfn(0), Gfn(1));
        let nowhere = Span::new(Hva(0), Hva(0));
        let shared = Arc::new((
            Active::new(),
            SlotSets::new(Limits::default(), false),
            [UnsafeCell::new(0), UnsafeCell::new(0)],
            Entry::new(Word::OLDEST),
        ));
        let theirs = shared.clone();
        let fault = thread::spawn(move || {
            let (active, sets, made_of, entry) = &*theirs;
            let word = entry.load();
            let epoch = active.epoch();
            let number = sets.number();
            made_of[number as usize].with(|value| {
                // SAFETY: loom checks that it was written before.
                unsafe { *value }
            });
            let page = Page::small(gfns.start, Hva(0x1000));
            if active
                .stamp(epoch, page, Level::M2, word)
                .is_ok_and(|stamp| Word::OLDEST < word && word <= stamp.newest)
            {
                assert_eq!(number, 1, "the slots are of another moment than the stamp");
            }
        });
        let (active, sets, made_of, entry) = &*shared;
        let change = active.begin(gfns, nowhere);
        assert_eq!(entry.cas(Word::OLDEST, Word::hole(change.version())), Ok(()));
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
        // SAFETY: loom checks that no reader has found it yet.
        unsafe { *value = 1 }
    });
    let set = sets.writer.lock().map.root();
    // SAFETY: there is one writer, and free cells suffice.
    unsafe { sets.publish(set, under, false) };
}

#[test]
fn a_confirmed_stamp_and_its_slots_are_of_one_moment() {
    explore(looks_up(Mistake::None));
}

#[test]
fn a_version_is_written_before_a_reader_finds_it() {
    explore(|| {
        let sets = SlotSets::new(Limits::default(), false);
        let shared = Arc::new((sets, [UnsafeCell::new(0), UnsafeCell::new(0)]));
        let theirs = shared.clone();
        let reader = thread::spawn(move || {
            let (sets, made_of) = &*theirs;
            // SAFETY: nothing is reclaimed.
            let number = unsafe { sets.load() }.number;
            made_of[number as usize].with(|value| {
                // SAFETY: loom checks that it was written before.
                unsafe { *value }
            });
        });
        let (sets, made_of) = &*shared;
        publish(sets, crate::table::Version(1), &made_of[1]);
        reader.join().expect("it ends");
    });
}

#[test]
fn mistake_ending_before_publishing() {
    assert!(finds("of another moment", looks_up(Mistake::EndsFirst)));
}
