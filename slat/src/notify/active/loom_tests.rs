//! Stamps against invalidations, on one entry: the shipped orderings of W, the active set and the entries.
//!
//! The host is one word without any ordering of its own: what a fault installs is right only if the protocol carries
//! the host's change to it. A leaf is `frame << 12 | 7`; without bit 1 it is read-only.

use super::*;
use crate::loom_tests::{explore, explore_within, finds, finds_seeded};
use crate::seeded::Bug;
use crate::sync::prim::AtomicU64;
use crate::table::entry::{Entry, Kind};
use crate::table::formats::Ept4;
use crate::table::freeze::Freeze;
use crate::{Format, Level};
use loom::cell::UnsafeCell;
use std::sync::Arc;

const GFNS: Span<Gfn> = Span::new(Gfn(0), Gfn(1));
const NOWHERE: Span<Hva> = Span::new(Hva(0), Hva(0));
const WRITE: u64 = 2;

/// What a thread leaves out.
#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    HostFirst,
    NoSecondLook,
    NoAdoption,
}
use Mistake::NoSecondLook;

struct Shared {
    active: Active,
    upper: Entry,
    /// Leaf tables of one entry.
    tables: [Entry; 2],
    frame: AtomicU64,
    /// Whether the host allows writes.
    writable: AtomicU64,
    /// A vCPU caches the page.
    cached: AtomicU64,
}

fn leaf(frame: u64, write: u64) -> Word {
    Word(frame << 12 | 5 | write)
}

fn hole(version: u64) -> Word {
    Word::hole(Version(version))
}

fn link(table: u64) -> Word {
    Word(table << 12 | 7)
}

fn is_leaf(word: Word) -> bool {
    matches!(word.kind::<Ept4>(Level::K4), Kind::Leaf)
}

impl Shared {
    fn new(upper: Word, entry: Word) -> Self {
        Self {
            active: Active::new(),
            upper: Entry::new(upper),
            tables: [Entry::new(entry), Entry::new(hole(0))],
            frame: AtomicU64::new(1),
            writable: AtomicU64::new(1),
            cached: AtomicU64::new(0),
        }
    }

    /// A fault's stamp, confirmed, and the host's answer.
    fn ask(&self, mistake: Mistake) -> Option<(Stamp, u64)> {
        let early = (mistake == Mistake::HostFirst).then(|| self.frame.load(Relaxed));
        let stamp = self.active.stamp();
        let confirmed = match mistake {
            NoSecondLook => stamp.is_quiet() || !self.active.covered(GFNS, NOWHERE, None),
            _ => self.active.confirm(stamp, GFNS, NOWHERE).is_ok(),
        };
        let frame = early.unwrap_or_else(|| self.frame.load(Relaxed));
        confirmed.then_some((stamp, frame))
    }

    fn install(entry: &Entry, (stamp, frame): (Stamp, u64)) {
        let word = entry.load();
        if word.is_hole() && word <= stamp.newest() {
            let _ = entry.cas(word, leaf(frame, WRITE));
        }
    }

    /// Zaps one entry; whether a flush is owed.
    fn zap(ticket: &Ticket<'_>, entry: &Entry, adopts: bool) -> bool {
        let mine = Word::hole(ticket.version());
        let mut word = entry.load();
        loop {
            let owes = !word.is_hole() || adopts && ticket.unflushed(word.version());
            if word.is_hole() && word >= mine {
                return owes;
            }
            match entry.cas(word, mine) {
                Ok(()) => return owes,
                Err(found) => word = found,
            }
        }
    }
}

/// A fault fills a hole beside an invalidation of it.
fn fill(faults: u32, mistake: Mistake) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new(Shared::new(hole(0), hole(0)));
        let theirs = shared.clone();
        let fault = loom::thread::spawn(move || {
            for _ in 0..faults {
                if let Some(asked) = theirs.ask(mistake) {
                    Shared::install(&theirs.tables[0], asked);
                }
            }
        });
        let ticket = shared.active.begin(GFNS, NOWHERE);
        Shared::zap(&ticket, &shared.tables[0], true);
        ticket.flushed();
        shared.frame.store(2, Relaxed);
        drop(ticket);
        fault.join().expect("the fault ends");
        let word = shared.tables[0].load();
        assert!(!is_leaf(word) || word == leaf(2, WRITE), "a frame that the host has taken back");
    }
}

#[test]
fn a_fault_never_installs_what_the_host_has_taken_back() {
    explore(fill(1, Mistake::None));
    explore_within(3, fill(2, Mistake::None));
}

#[test]
fn mistake_a_stamp_that_is_not_confirmed() {
    finds_seeded(Bug::StampUnconfirmed, "taken back", fill(1, Mistake::None));
}

#[test]
fn mistakes_about_w() {
    for bug in [Bug::StampRelaxed, Bug::BeginRelaxed, Bug::EndRelaxed, Bug::StateRelaxed, Bug::ClearRelaxed] {
        finds_seeded(bug, "taken back", fill(1, Mistake::None));
    }
}

#[test]
fn mistake_the_host_is_asked_before_the_stamp() {
    assert!(finds("taken back", fill(1, Mistake::HostFirst)));
}

/// A fault beside an invalidation whose place in the set goes to the next one, over other frames; `another` thread's.
fn hands_its_slot_on(another: bool) {
    let shared = Arc::new(Shared::new(hole(0), hole(0)));
    // SAFETY: it ends before the set goes.
    let active: &'static Active = unsafe { &*(&raw const shared.active) };
    let ticket = active.begin(GFNS, NOWHERE);
    let next = || drop(active.begin(Span::new(Gfn(8), Gfn(9)), NOWHERE));
    let theirs = shared.clone();
    let fault = loom::thread::spawn(move || {
        if let Some(asked) = theirs.ask(Mistake::None) {
            Shared::install(&theirs.tables[0], asked);
        }
    });
    let other = another.then(|| loom::thread::spawn(next));
    Shared::zap(&ticket, &shared.tables[0], true);
    ticket.flushed();
    shared.frame.store(2, Relaxed);
    drop(ticket);
    match other {
        Some(other) => other.join().expect("it ends"),
        None => next(),
    }
    fault.join().expect("the fault ends");
    let word = shared.tables[0].load();
    assert!(!is_leaf(word) || word == leaf(2, WRITE), "a frame that the host has taken back");
}

#[test]
fn an_invalidation_that_has_ended_is_not_taken_for_the_next() {
    explore_within(3, || hands_its_slot_on(false));
    explore_within(3, || hands_its_slot_on(true));
}

#[test]
fn mistakes_about_a_slot_that_is_handed_on() {
    finds_seeded(Bug::RangesRelaxed, "taken back", || hands_its_slot_on(false));
    finds_seeded(Bug::TakenRelaxed, "taken back", || hands_its_slot_on(true));
}

/// A fault fills a hole beside an invalidation of it for which the set grows: its one place is taken, by an invalidation of
/// other frames.
fn fill_beyond() {
    let active = Active::with_places(1);
    let shared = Arc::new(Shared { active, ..Shared::new(hole(0), hole(0)) });
    let elsewhere = shared.active.begin(Span::new(Gfn(8), Gfn(9)), NOWHERE);
    let theirs = shared.clone();
    let fault = loom::thread::spawn(move || {
        if let Some(asked) = theirs.ask(Mistake::None) {
            Shared::install(&theirs.tables[0], asked);
        }
    });
    let ticket = shared.active.begin(GFNS, NOWHERE);
    Shared::zap(&ticket, &shared.tables[0], true);
    ticket.flushed();
    shared.frame.store(2, Relaxed);
    drop(ticket);
    fault.join().expect("the fault ends");
    drop(elsewhere);
    let word = shared.tables[0].load();
    assert!(!is_leaf(word) || word == leaf(2, WRITE), "a frame that the host has taken back");
}

#[test]
fn an_invalidation_beyond_the_first_places_is_seen() {
    explore_within(3, fill_beyond);
}

#[test]
fn mistakes_about_places_beyond_the_first() {
    for bug in [Bug::BeyondRelaxed, Bug::BeyondLate, Bug::BeyondEndRelaxed] {
        finds_seeded(bug, "taken back", fill_beyond);
    }
}

/// Two faults fill the same hole beside an invalidation of it.
fn fill_at_once() {
    let shared = Arc::new(Shared::new(hole(0), hole(0)));
    let faults = [(), ()].map(|()| {
        let theirs = shared.clone();
        loom::thread::spawn(move || {
            if let Some(asked) = theirs.ask(Mistake::None) {
                Shared::install(&theirs.tables[0], asked);
            }
        })
    });
    let ticket = shared.active.begin(GFNS, NOWHERE);
    Shared::zap(&ticket, &shared.tables[0], true);
    ticket.flushed();
    shared.frame.store(2, Relaxed);
    drop(ticket);
    faults.into_iter().for_each(|fault| fault.join().expect("the fault ends"));
    let word = shared.tables[0].load();
    assert!(!is_leaf(word) || word == leaf(2, WRITE), "a frame that the host has taken back");
}

#[test]
fn nor_do_two_faults_on_one_page() {
    explore_within(3, fill_at_once);
}

/// One invalidation unhooks a table while a newer one works inside it: the cut.
fn unhook(mistake: Mistake) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new(Shared::new(link(0), hole(0)));
        // SAFETY: the thread that gets it is joined before the set goes.
        let active: &'static Active = unsafe { &*(&raw const shared.active) };
        let older = active.begin(GFNS, NOWHERE);
        let theirs = shared.clone();
        let unhooker = loom::thread::spawn(move || {
            let _ = theirs.upper.cas(link(0), Word::hole(older.version()));
            drop(older);
        });
        let theirs = shared.clone();
        let fault = loom::thread::spawn(move || {
            let Some(asked) = theirs.ask(mistake) else { return };
            let mut upper = theirs.upper.load();
            if upper.is_hole() {
                theirs.tables[1].fill(upper);
                upper = theirs.upper.cas(upper, link(1)).map_or_else(|found| found, |()| link(1));
            }
            if !upper.is_hole() {
                Shared::install(&theirs.tables[Ept4::pfn(upper).0 as usize], asked);
            }
        });
        let newer = shared.active.begin(GFNS, NOWHERE);
        let mut upper = shared.upper.load();
        while upper.is_hole() && upper < Word::hole(newer.version()) {
            upper =
                shared.upper.cas(upper, Word::hole(newer.version())).map_or_else(|found| found, |()| link(9));
        }
        if upper != link(9) && !upper.is_hole() {
            Shared::zap(&newer, &shared.tables[Ept4::pfn(upper).0 as usize], true);
        }
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
    explore_within(3, unhook(Mistake::None));
}

#[test]
fn mistake_no_second_look_at_w() {
    assert!(finds("taken back", unhook(NoSecondLook)));
}

/// An upgrade beside an invalidation that withdraws write permission: both store, then load.
fn upgrade() -> impl Fn() + Send + Sync + 'static {
    || {
        let shared = Arc::new(Shared::new(hole(0), leaf(1, 0)));
        let theirs = shared.clone();
        let upgrader = loom::thread::spawn(move || {
            let (entry, frozen) = (&theirs.tables[0], Word::frozen(1));
            let Some(frozen) = Freeze::new(entry, leaf(1, 0), frozen) else { return };
            let stamp = theirs.active.stamp();
            let allowed =
                theirs.active.confirm(stamp, GFNS, NOWHERE).is_ok() && theirs.writable.load(Relaxed) == 1;
            let _ = frozen.thaw(leaf(1, if allowed { WRITE } else { 0 }));
        });
        let ticket = shared.active.begin(GFNS, NOWHERE);
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
    explore(upgrade());
}

#[test]
fn mistakes_about_the_fences_of_an_upgrade() {
    for bug in [Bug::FreezeUnfenced, Bug::BeginUnfenced] {
        finds_seeded(bug, "withdrawn", upgrade());
    }
}

/// Two invalidations of a page that a vCPU caches: whoever finds the other's hole must not go on before its flush.
/// The first one's place in the set may go to another at once, over other frames.
fn adopt(mistake: Mistake, hands_on: bool) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new((Shared::new(hole(0), leaf(1, WRITE)), UnsafeCell::new(0)));
        shared.0.cached.store(1, Relaxed);
        let invalidate = move |(shared, host): &(Shared, UnsafeCell<u64>), change: bool| {
            let ticket = shared.active.begin(GFNS, NOWHERE);
            if Shared::zap(&ticket, &shared.tables[0], mistake != Mistake::NoAdoption) {
                // The shootdown: its answers are full fences.
                fence(SeqCst);
                shared.cached.swap(0, AcqRel);
            }
            ticket.flushed();
            assert_eq!(shared.cached.load(Relaxed), 0, "the host changes what a vCPU still caches");
            if change {
                // SAFETY: one of the two does it.
                host.with_mut(|host| unsafe { *host += 1 });
            }
            drop(ticket);
        };
        let theirs = shared.clone();
        let other = loom::thread::spawn(move || invalidate(&theirs, false));
        invalidate(&shared, true);
        if hands_on {
            drop(shared.0.active.begin(Span::new(Gfn(8), Gfn(9)), NOWHERE));
        }
        other.join().expect("it ends");
    }
}

#[test]
fn debts_are_adopted_until_they_are_paid() {
    explore_within(4, adopt(Mistake::None, false));
    explore_within(3, adopt(Mistake::None, true));
}

#[test]
fn mistakes_about_who_has_paid() {
    for bug in [Bug::PaidRelaxed, Bug::OthersRelaxed] {
        finds_seeded(bug, "still caches", adopt(Mistake::None, false));
    }
    finds_seeded(Bug::FirstRelaxed, "still caches", adopt(Mistake::None, true));
}

#[test]
fn mistake_no_adoption() {
    assert!(finds("still caches", adopt(Mistake::NoAdoption, false)));
}
