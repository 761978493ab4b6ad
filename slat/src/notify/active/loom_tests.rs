//! Stamps against invalidations, on one entry: the shipped orderings of N, the lines, the active set and the entries.
//!
//! The host is one word without any ordering of its own: what a fault installs is right only if the protocol carries
//! the host's change to it. A leaf is `frame << 12 | 7`; without bit 1 it is read-only.

use super::*;
use crate::loom_tests::{explore_within, finds, finds_seeded};
use crate::seeded::Bug;
use crate::sync::prim::{AcqRel, Acquire, AtomicU64, Relaxed};
use crate::table::Word;
use crate::table::entry::{Entry, Kind};
use crate::table::formats::Ept4;
use crate::table::freeze::Freeze;
use crate::{Format, Level};
use loom::cell::UnsafeCell;
use std::sync::Arc;

const NOWHERE: Span<Hva> = Span::new(Hva(0), Hva(0));
/// Frame 0, and its page.
const PAGE: Page = Page::small(Gfn(0), Hva(0x1000));
/// What an invalidation covers: that page by its frame, which is wide; or by its host address, which is narrow.
type Ranges = (Span<Gfn>, Span<Hva>);
const WIDE: Ranges = (Span::new(Gfn(0), Gfn(1)), NOWHERE);
const NARROW: Ranges = (Span::new(Gfn(0), Gfn(0)), Span::new(Hva(0x1000), Hva(0x2000)));
/// Another page of the same region.
const BESIDE: Ranges = (Span::new(Gfn(0), Gfn(0)), Span::new(Hva(0x8000), Hva(0x9000)));
const WRITE: u64 = 2;

/// What a thread leaves out.
#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    HostFirst,
    NoAdoption,
}

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
        let stamp = self.stamp(Level::M2)?;
        let frame = early.unwrap_or_else(|| self.frame.load(Relaxed));
        Some((stamp, frame))
    }

    fn stamp(&self, reach: Level) -> Option<Stamp> {
        self.active.stamp(self.active.epoch(), PAGE, reach, Word::OLDEST).ok()
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

impl Shared {
    /// Every entry of the page: the one above the table, and the table's.
    fn edit(&self, ticket: &Ticket<'_>) {
        let mut upper = self.upper.load();
        while upper.is_hole() && upper < Word::hole(ticket.version()) {
            match self.upper.cas(upper, Word::hole(ticket.version())) {
                Ok(()) => return,
                Err(found) => upper = found,
            }
        }
        if !upper.is_hole() {
            Self::zap(ticket, &self.tables[Ept4::pfn(upper).0 as usize], true);
        }
    }
}

/// A fault fills a hole beside an invalidation of it.
fn fill((gfns, hvas): Ranges, faults: u32, mistake: Mistake) -> impl Fn() + Send + Sync + 'static {
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
        let ticket = shared.active.begin(gfns, hvas);
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
    for ranges in [WIDE, NARROW] {
        explore_within(4, fill(ranges, 1, Mistake::None));
        explore_within(3, fill(ranges, 2, Mistake::None));
    }
}

#[test]
fn mistake_a_stamp_without_a_look_at_who_is_active() {
    finds_seeded(Bug::StampUnconfirmed, "taken back", fill(NARROW, 1, Mistake::None));
}

#[test]
fn mistakes_about_lines() {
    let narrow = [Bug::StampRelaxed, Bug::ListRelaxed, Bug::BeginRelaxed, Bug::EndRelaxed, Bug::StateRelaxed];
    for bug in narrow.into_iter().chain([Bug::ClearRelaxed]) {
        finds_seeded(bug, "taken back", fill(NARROW, 1, Mistake::None));
    }
}

/// A fault beside an invalidation of its page, inside one of another page of the region: whose number may be newer.
fn overtaken((gfns, hvas): Ranges) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new(Shared::new(hole(0), hole(0)));
        let theirs = shared.clone();
        let fault = loom::thread::spawn(move || {
            let _beside = theirs.active.begin(BESIDE.0, BESIDE.1);
            if let Some(asked) = theirs.ask(Mistake::None) {
                Shared::install(&theirs.tables[0], asked);
            }
        });
        let ticket = shared.active.begin(gfns, hvas);
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
fn an_invalidation_that_is_overtaken_is_found_listed() {
    explore_within(3, overtaken(WIDE));
    explore_within(3, overtaken(NARROW));
}

#[test]
fn mistake_a_number_is_taken_before_the_list() {
    finds_seeded(Bug::NumberedFirst, "taken back", overtaken(NARROW));
}

/// A fault finds a slot that is being published, beside an invalidation by host address, which walks what slots there are.
fn published() {
    let shared = Arc::new((Shared::new(hole(0), hole(0)), AtomicU64::new(0)));
    let theirs = shared.clone();
    let commit = loom::thread::spawn(move || {
        let (shared, slots) = &*theirs;
        let ticket = shared.active.begin(WIDE.0, WIDE.1);
        slots.store(1, Release);
        drop(ticket);
    });
    let theirs = shared.clone();
    let fault = loom::thread::spawn(move || {
        let (shared, slots) = &*theirs;
        let epoch = shared.active.epoch();
        if slots.load(Acquire) == 1
            && let Ok(stamp) = shared.active.stamp(epoch, PAGE, Level::M2, Word::OLDEST)
        {
            Shared::install(&shared.tables[0], (stamp, shared.frame.load(Relaxed)));
        }
    });
    let (shared, slots) = &*shared;
    let ticket = shared.active.begin(NARROW.0, NARROW.1);
    if slots.load(Acquire) == 1 {
        Shared::zap(&ticket, &shared.tables[0], true);
    }
    ticket.flushed();
    shared.frame.store(2, Relaxed);
    drop(ticket);
    commit.join().expect("it ends");
    fault.join().expect("the fault ends");
    let word = shared.tables[0].load();
    assert!(!is_leaf(word) || word == leaf(2, WRITE), "a frame that the host has taken back");
}

#[test]
fn an_invalidation_finds_every_slot_that_a_fault_has_found() {
    explore_within(3, published);
}

#[test]
fn mistake_the_end_of_a_transaction_takes_no_number() {
    finds_seeded(Bug::EndUnnumbered, "taken back", published);
}

#[test]
fn mistake_the_host_is_asked_before_the_stamp() {
    assert!(finds("taken back", fill(NARROW, 1, Mistake::HostFirst)));
}

/// A fault beside an invalidation whose place in the set goes to the next one, over other frames; `another` thread's.
fn hands_its_slot_on(another: bool) {
    let shared = Arc::new(Shared::new(hole(0), hole(0)));
    // SAFETY: it ends before the set goes.
    let active: &'static Active = unsafe { &*(&raw const shared.active) };
    let ticket = active.begin(NARROW.0, NARROW.1);
    let next = || drop(active.begin(BESIDE.0, BESIDE.1));
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

/// A fault fills a hole beside an invalidation of it. It may map a page larger than a region, and looks at all places.
/// The set may have to grow for the invalidation: its one place is taken, by an invalidation of other frames.
fn fill_far(grows: bool) -> impl Fn() + Send + Sync + 'static {
    move || {
        let active = Active::with_places(if grows { 1 } else { 2 });
        let shared = Arc::new(Shared { active, ..Shared::new(hole(0), hole(0)) });
        let elsewhere = grows.then(|| shared.active.begin(BESIDE.0, BESIDE.1));
        let theirs = shared.clone();
        let fault = loom::thread::spawn(move || {
            if let Some(stamp) = theirs.stamp(Level::G1) {
                Shared::install(&theirs.tables[0], (stamp, theirs.frame.load(Relaxed)));
            }
        });
        let ticket = shared.active.begin(NARROW.0, NARROW.1);
        Shared::zap(&ticket, &shared.tables[0], true);
        ticket.flushed();
        shared.frame.store(2, Relaxed);
        drop(ticket);
        fault.join().expect("the fault ends");
        drop(elsewhere);
        let word = shared.tables[0].load();
        assert!(!is_leaf(word) || word == leaf(2, WRITE), "a frame that the host has taken back");
    }
}

#[test]
fn a_fault_that_looks_at_all_places_sees_those_beyond_the_first() {
    explore_within(3, fill_far(false));
    explore_within(3, fill_far(true));
}

#[test]
fn mistakes_about_all_places() {
    finds_seeded(Bug::NumberedRelaxed, "taken back", fill_far(false));
    for bug in [Bug::BeyondRelaxed, Bug::BeyondLate, Bug::BeyondEndRelaxed] {
        finds_seeded(bug, "taken back", fill_far(true));
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
    let ticket = shared.active.begin(NARROW.0, NARROW.1);
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

/// One invalidation unhooks a table while a newer one works inside it, and would hide its hole.
fn unhook(older: Ranges, newer: Ranges) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new(Shared::new(link(0), hole(0)));
        // SAFETY: the thread that gets it is joined before the set goes.
        let active: &'static Active = unsafe { &*(&raw const shared.active) };
        let older = active.begin(older.0, older.1);
        let theirs = shared.clone();
        let unhooker = loom::thread::spawn(move || {
            let _ = theirs.upper.cas(link(0), Word::hole(older.version()));
            if older.is_followed() {
                older.renumber();
                theirs.edit(&older);
            }
            drop(older);
        });
        let theirs = shared.clone();
        let fault = loom::thread::spawn(move || {
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

#[test]
fn mistake_to_take_a_table_away_and_look_at_nobody() {
    finds_seeded(Bug::NewerHidden, "taken back", unhook(NARROW, NARROW));
}

/// An older invalidation takes a read-only leaf away that a newer one, of write permission, has passed by; then a fault of a
/// store asks the host.
fn pass_by() {
    let shared = Arc::new(Shared::new(hole(0), leaf(1, 0)));
    // SAFETY: the threads that get it are joined before the set goes.
    let active: &'static Active = unsafe { &*(&raw const shared.active) };
    let older = active.begin(NARROW.0, NARROW.1);
    let theirs = shared.clone();
    let zap = loom::thread::spawn(move || {
        Shared::zap(&older, &theirs.tables[0], true);
        if older.is_followed() {
            older.renumber();
            Shared::zap(&older, &theirs.tables[0], true);
        }
        older.flushed();
        drop(older);
    });
    let theirs = shared.clone();
    let fault = loom::thread::spawn(move || {
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

#[test]
fn mistake_to_take_a_leaf_away_and_look_at_nobody() {
    finds_seeded(Bug::NewerHidden, "withdrawn", pass_by);
}

/// An upgrade beside an invalidation that withdraws write permission: both store, then load.
fn upgrade((gfns, hvas): Ranges) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new(Shared::new(hole(0), leaf(1, 0)));
        let theirs = shared.clone();
        let upgrader = loom::thread::spawn(move || {
            let (entry, frozen) = (&theirs.tables[0], Word::frozen(1));
            let Some(frozen) = Freeze::new(entry, leaf(1, 0), frozen) else { return };
            let stamp = theirs.active.stamp(theirs.active.epoch(), PAGE, Level::K4, Word::OLDEST);
            let allowed = stamp.is_ok() && theirs.writable.load(Relaxed) == 1;
            let _ = frozen.thaw(leaf(1, if allowed { WRITE } else { 0 }));
        });
        let ticket = shared.active.begin(gfns, hvas);
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
    explore_within(4, upgrade(NARROW));
    explore_within(4, upgrade(WIDE));
}

#[test]
fn mistakes_about_the_fences_of_an_upgrade() {
    for bug in [Bug::FreezeUnfenced, Bug::BeginUnfenced] {
        finds_seeded(bug, "withdrawn", upgrade(NARROW));
    }
}

/// Two invalidations of a page that a vCPU caches: whoever finds the other's hole must not go on before its flush.
/// The first one's place in the set may go to another at once, over other frames.
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
                // SAFETY: one of the two does it.
                host.with_mut(|host| unsafe { *host += 1 });
            }
            drop(ticket);
        };
        let theirs = shared.clone();
        let other = loom::thread::spawn(move || invalidate(&theirs, false));
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
        explore_within(3, adopt(ranges, Mistake::None, false));
        explore_within(2, adopt(ranges, Mistake::None, true));
    }
}

#[test]
fn mistakes_about_who_has_paid() {
    finds_seeded(Bug::PaidRelaxed, "still caches", adopt(NARROW, Mistake::None, false));
    finds_seeded(Bug::OthersRelaxed, "still caches", adopt(WIDE, Mistake::None, false));
    finds_seeded(Bug::FirstRelaxed, "still caches", adopt(NARROW, Mistake::None, true));
}

#[test]
fn mistake_no_adoption() {
    assert!(finds("still caches", adopt(NARROW, Mistake::NoAdoption, false)));
}
