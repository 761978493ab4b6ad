//! Two invalidations, or one and an upgrade: what one zaps or passes by while the other runs, and which owes the flush.

use crate::active::Active;
use crate::active::loom_tests::*;
use crate::loom_tests::{UnsafeCell, explore_within, finds, thread};
use crate::sync::prim::Relaxed;
use crate::sync::prim::{AcqRel, SeqCst, fence};
use crate::table::Word;
use crate::table::formats::Ept4;
use crate::table::freeze::Freeze;
use crate::{Format, Level};
use std::sync::Arc;

/// One invalidation unhooks a table in which a newer one edits, and would hide the newer hole.
fn unhook(older: Ranges, newer: Ranges) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new(Shared::new(link(0), hole(0)));
        // SAFETY: the thread that gets it is joined before the set is dropped.
        let active: &'static Active = unsafe { &*core::ptr::from_ref(&shared.active) };
        let mut older = active.begin(older.0, older.1);
        let theirs = shared.clone();
        let unhooker = thread::spawn(move || {
            let _ = theirs.upper.cas(link(0), Word::hole(older.version()));
            older.removes();
            if older.must_repeat(false) {
                theirs.edit(&older);
            }
            drop(older);
        });
        let theirs = shared.clone();
        let fault = thread::spawn(move || {
            let Some(asked) = theirs.ask(Mistake::None) else { return };
            let mut upper = theirs.upper.load();
            if upper.is_hole() {
                theirs.tables[1].fill(upper);
                upper = theirs.upper.cas(upper, link(1)).map_or_else(|found| found, |()| link(1));
            }
            if !upper.is_hole() {
                Shared::install(&theirs.tables[Ept4::pfn(upper).0 as usize], asked);
            }
        });
        let newer = shared.active.begin(newer.0, newer.1);
        shared.edit(&newer);
        newer.flushed();
        shared.frame.store(2, Relaxed);
        drop(newer);
        unhooker.join().expect("it ends");
        fault.join().expect("the fault ends");
        let upper = shared.upper.load();
        if !upper.is_hole() {
            let word = shared.tables[Ept4::pfn(upper).0 as usize].load();
            assert!(!is_leaf(word) || word == leaf(2, WRITE), "a frame that the host has taken back");
        }
    }
}

#[test]
fn an_older_invalidation_that_unhooks_hides_no_newer_one() {
    explore_within(2, unhook(NARROW, NARROW));
    explore_within(2, unhook(WIDE, NARROW));
}

/// An older invalidation zaps a read-only leaf that a newer one, which withdraws write permission, has passed by. Then
/// a store's fault asks the host.
fn pass_by() {
    let shared = Arc::new(Shared::new(hole(0), leaf(1, 0)));
    // SAFETY: the threads that get it are joined before the set is dropped.
    let active: &'static Active = unsafe { &*core::ptr::from_ref(&shared.active) };
    let mut older = active.begin(NARROW.0, NARROW.1);
    let theirs = shared.clone();
    let zap = thread::spawn(move || {
        for pass in 0.. {
            Shared::zap(&older, &theirs.tables[0], true);
            // A pass that took nothing would end it: then it would never become wide here.
            older.removes();
            if !older.must_repeat(pass > 0) {
                break;
            }
        }
        older.flushed();
        drop(older);
    });
    let theirs = shared.clone();
    let fault = thread::spawn(move || {
        if let Some(stamp) = theirs.stamp(Level::M2)
            && theirs.writable.load(Relaxed) == 1
        {
            Shared::install(&theirs.tables[0], (stamp, 1));
        }
    });
    let newer = active.begin(NARROW.0, NARROW.1);
    if shared.tables[0].load() != leaf(1, 0) {
        Shared::zap(&newer, &shared.tables[0], true);
    }
    newer.flushed();
    shared.writable.store(0, Relaxed);
    drop(newer);
    zap.join().expect("it ends");
    fault.join().expect("the fault ends");
    assert_ne!(shared.tables[0].load(), leaf(1, WRITE), "a permission that the host has withdrawn");
}

#[test]
fn an_invalidation_that_takes_away_what_a_newer_one_has_passed_by_leaves_a_newer_hole() {
    explore_within(2, pass_by);
}

/// An upgrade and an invalidation that withdraws write permission: both store, then load. An invalidation of
/// another page widens to this one first.
fn upgrade((gfns, hvas): Ranges) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new(Shared::new(hole(0), leaf(1, 0)));
        let theirs = shared.clone();
        let upgrader = thread::spawn(move || {
            let (entry, frozen) = (&theirs.tables[0], Word::frozen(1));
            let Some(frozen) = Freeze::new(entry, leaf(1, 0), frozen) else { return };
            let stamp = theirs.active.stamp(theirs.active.epoch(), PAGE, Level::K4, Word::OLDEST);
            let allowed = stamp.is_ok() && theirs.writable.load(Relaxed) == 1;
            let _ = frozen.thaw(leaf(1, if allowed { WRITE } else { 0 }));
        });
        let mut ticket = shared.active.begin(gfns, hvas);
        if (gfns, hvas) == BESIDE {
            ticket.widen(WIDE.0);
        }
        let entry = &shared.tables[0];
        let mut word = entry.load();
        while word != leaf(1, 0) {
            let new = if is_leaf(word) { leaf(1, 0) } else { Word::hole(ticket.version()) };
            match entry.cas(word, new) {
                Ok(()) => break,
                Err(found) => word = found,
            }
        }
        ticket.flushed();
        shared.writable.store(0, Relaxed);
        drop(ticket);
        upgrader.join().expect("it ends");
        assert_ne!(shared.tables[0].load(), leaf(1, WRITE), "a permission that the host has withdrawn");
    }
}

#[test]
fn an_upgrade_gives_no_permission_that_is_being_withdrawn() {
    explore_within(3, upgrade(NARROW));
    explore_within(3, upgrade(WIDE));
}

#[test]
fn an_upgrade_gives_no_permission_that_a_widened_invalidation_withdraws() {
    explore_within(2, upgrade(BESIDE));
}

/// Two invalidations of a page that a vCPU caches. One that finds the other's hole must not continue before its flush.
/// The first one's place may go to another invalidation at once, over other frames.
fn adopt((gfns, hvas): Ranges, mistake: Mistake, hands_on: bool) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new((Shared::new(hole(0), leaf(1, WRITE)), UnsafeCell::new(0)));
        shared.0.cached.store(1, Relaxed);
        let invalidate = move |(shared, host): &(Shared, UnsafeCell<u64>), change: bool| {
            let ticket = shared.active.begin(gfns, hvas);
            if Shared::zap(&ticket, &shared.tables[0], mistake != Mistake::NoAdoption) {
                // The shootdown: its answers are full fences.
                fence(SeqCst);
                shared.cached.swap(0, AcqRel);
            }
            ticket.flushed();
            assert_eq!(shared.cached.load(Relaxed), 0, "the host changes what a vCPU still caches");
            if change {
                // SAFETY: only one of the two runs this.
                host.with_mut(|host| unsafe { *host += 1 });
            }
            drop(ticket);
        };
        let theirs = shared.clone();
        let other = thread::spawn(move || invalidate(&theirs, false));
        invalidate(&shared, true);
        if hands_on {
            drop(shared.0.active.begin(BESIDE.0, BESIDE.1));
        }
        other.join().expect("it ends");
    }
}

#[test]
fn debts_are_adopted_until_they_are_paid() {
    for ranges in [WIDE, NARROW] {
        explore_within(2, adopt(ranges, Mistake::None, false));
        explore_within(2, adopt(ranges, Mistake::None, true));
    }
}

#[test]
fn mistake_no_adoption() {
    assert!(finds("still caches", adopt(NARROW, Mistake::NoAdoption, false)));
}
