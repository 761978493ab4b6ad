//! Stamps and invalidations on one entry, with the shipped orderings of N, the lines, the active set and the entries.
//!
//! The host is one word without any ordering of its own: a fault installs the right frame only if the protocol carries
//! the host's change to it. A leaf is `frame << 12 | 7`; without bit 1 it is read-only.

use super::*;
use crate::loom_tests::{explore_within, finds, thread};
use crate::sync::prim::{Acquire, AtomicU64, Relaxed, Release};
use crate::table::Word;
use crate::table::entry::Entry;
use crate::table::format::Kind;
use crate::table::formats::Ept4;
use crate::{Format, Level};
use std::sync::Arc;

pub(crate) const NOWHERE: Span<Hva> = Span::new(Hva(0), Hva(0));
/// Frame 0, and its page.
pub(crate) const PAGE: Page = Page::small(Gfn(0), Hva(0x1000));
/// The range of an invalidation: that page by its frame, which is wide; or by its host address, which is narrow.
pub(crate) type Ranges = (Span<Gfn>, Span<Hva>);
pub(crate) const WIDE: Ranges = (Span::new(Gfn(0), Gfn(1)), NOWHERE);
pub(crate) const NARROW: Ranges = (Span::new(Gfn(0), Gfn(0)), Span::new(Hva(0x1000), Hva(0x2000)));
/// Another page of the same region.
pub(crate) const BESIDE: Ranges = (Span::new(Gfn(0), Gfn(0)), Span::new(Hva(0x8000), Hva(0x9000)));
pub(crate) const WRITE: u64 = 2;

/// A step that a thread leaves out.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Mistake {
    None,
    HostFirst,
    NoAdoption,
}

pub(crate) struct Shared {
    pub(crate) active: Active,
    pub(crate) upper: Entry,
    /// Leaf tables of one entry.
    pub(crate) tables: [Entry; 2],
    pub(crate) frame: AtomicU64,
    /// Whether the host allows writes.
    pub(crate) writable: AtomicU64,
    /// Whether a vCPU caches the page.
    pub(crate) cached: AtomicU64,
}

pub(crate) fn leaf(frame: u64, write: u64) -> Word {
    Word(frame << 12 | 5 | write)
}

pub(crate) fn hole(version: u64) -> Word {
    Word::hole(Version(version))
}

pub(crate) fn link(table: u64) -> Word {
    Word(table << 12 | 7)
}

pub(crate) fn is_leaf(word: Word) -> bool {
    matches!(word.kind::<Ept4>(Level::K4), Kind::Leaf)
}

impl Shared {
    pub(crate) fn new(upper: Word, entry: Word) -> Self {
        Self {
            active: Active::new(),
            upper: Entry::new(upper),
            tables: [Entry::new(entry), Entry::new(hole(0))],
            frame: AtomicU64::new(1),
            writable: AtomicU64::new(1),
            cached: AtomicU64::new(0),
        }
    }

    /// Takes a stamp, asks the host, and returns both; `None` if the stamp is not confirmed.
    pub(crate) fn ask(&self, mistake: Mistake) -> Option<(Stamp, u64)> {
        let early = (mistake == Mistake::HostFirst).then(|| self.frame.load(Relaxed));
        let stamp = self.stamp(Level::M2)?;
        let frame = early.unwrap_or_else(|| self.frame.load(Relaxed));
        Some((stamp, frame))
    }

    pub(crate) fn stamp(&self, reach: Level) -> Option<Stamp> {
        self.active.stamp(self.active.epoch(), PAGE, reach, Word::OLDEST).ok()
    }

    pub(crate) fn install(entry: &Entry, (stamp, frame): (Stamp, u64)) {
        let word = entry.load();
        if word.is_hole() && word <= stamp.newest {
            let _ = entry.cas(word, leaf(frame, WRITE));
        }
    }

    /// Zaps one entry. Returns whether a flush is owed.
    pub(crate) fn zap(ticket: &Ticket<'_>, entry: &Entry, adopts: bool) -> bool {
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
    /// Asserts that the page maps frame 2 or nothing once the host has changed to frame 2.
    fn assert_nothing_taken_back(&self) {
        let word = self.tables[0].load();
        assert!(!is_leaf(word) || word == leaf(2, WRITE), "a frame that the host has taken back");
    }

    /// Edits every entry of the page: the one above the table, and the table's.
    pub(crate) fn edit(&self, ticket: &Ticket<'_>) {
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

/// A fault fills a hole while an invalidation covers it.
fn fill((gfns, hvas): Ranges, faults: u32, mistake: Mistake) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new(Shared::new(hole(0), hole(0)));
        let theirs = shared.clone();
        let fault = thread::spawn(move || {
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
        shared.assert_nothing_taken_back();
    }
}

#[test]
fn a_fault_never_installs_what_the_host_has_taken_back() {
    for ranges in [WIDE, NARROW] {
        explore_within(3, fill(ranges, 1, Mistake::None));
        explore_within(2, fill(ranges, 2, Mistake::None));
    }
}

/// A fault that finds N quiet fills a hole while an invalidation covers it, or after the invalidation.
fn fill_in_quiet() {
    let shared = Arc::new(Shared::new(hole(0), hole(0)));
    let theirs = shared.clone();
    let fault = thread::spawn(move || {
        let Some(number) = theirs.active.quiet_number() else { return };
        for _ in 0..2 {
            let (stands, word) = (theirs.active.is_at(number), theirs.tables[0].load());
            if stands && word.is_hole() && word <= number.newest {
                let _ = theirs.tables[0].cas(word, leaf(theirs.frame.load(Relaxed), WRITE));
            }
        }
    });
    let ticket = shared.active.begin(NARROW.0, NARROW.1);
    Shared::zap(&ticket, &shared.tables[0], true);
    ticket.flushed();
    shared.frame.store(2, Relaxed);
    drop(ticket);
    fault.join().expect("the fault ends");
    shared.assert_nothing_taken_back();
}

#[test]
fn n_answers_while_it_stands() {
    explore_within(3, fill_in_quiet);
}

/// A fault and an invalidation of its page, inside one of another page of the region, whose number may be newer.
fn overtaken((gfns, hvas): Ranges) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new(Shared::new(hole(0), hole(0)));
        let theirs = shared.clone();
        let fault = thread::spawn(move || {
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
        shared.assert_nothing_taken_back();
    }
}

#[test]
fn an_invalidation_that_is_overtaken_is_found_listed() {
    explore_within(2, overtaken(WIDE));
    explore_within(2, overtaken(NARROW));
}

/// A fault finds a slot that is being published. An invalidation by host address walks the slots that are published.
fn published() {
    let shared = Arc::new((Shared::new(hole(0), hole(0)), AtomicU64::new(0)));
    let theirs = shared.clone();
    let commit = thread::spawn(move || {
        let (shared, slots) = &*theirs;
        let ticket = shared.active.begin(WIDE.0, WIDE.1);
        slots.store(1, Release);
        drop(ticket);
    });
    let theirs = shared.clone();
    let fault = thread::spawn(move || {
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
    shared.assert_nothing_taken_back();
}

#[test]
fn an_invalidation_finds_every_slot_that_a_fault_has_found() {
    explore_within(2, published);
}

#[test]
fn mistake_the_host_is_asked_before_the_stamp() {
    assert!(finds("taken back", fill(NARROW, 1, Mistake::HostFirst)));
}

/// A fault and an invalidation, whose place goes to the next one, over other frames; that is `another` thread's. The
/// place may be `beyond` the first ones.
fn hands_its_slot_on(another: bool, beyond: bool) {
    let active = if beyond { Active::with_places(1) } else { Active::new() };
    let shared = Arc::new(Shared { active, ..Shared::new(hole(0), hole(0)) });
    // SAFETY: the reference ends before the set is dropped.
    let active: &'static Active = unsafe { &*core::ptr::from_ref(&shared.active) };
    let first = beyond.then(|| active.begin(BESIDE.0, BESIDE.1));
    let ticket = active.begin(NARROW.0, NARROW.1);
    let next = || drop(active.begin(BESIDE.0, BESIDE.1));
    let theirs = shared.clone();
    let fault = thread::spawn(move || {
        if let Some(asked) = theirs.ask(Mistake::None) {
            Shared::install(&theirs.tables[0], asked);
        }
    });
    let other = another.then(|| thread::spawn(next));
    Shared::zap(&ticket, &shared.tables[0], true);
    ticket.flushed();
    shared.frame.store(2, Relaxed);
    drop(ticket);
    match other {
        Some(other) => other.join().expect("it ends"),
        None => next(),
    }
    fault.join().expect("the fault ends");
    drop(first);
    shared.assert_nothing_taken_back();
}

#[test]
fn an_invalidation_that_has_ended_is_not_taken_for_the_next() {
    explore_within(2, || hands_its_slot_on(false, false));
    explore_within(2, || hands_its_slot_on(true, false));
}

#[test]
fn an_invalidation_beyond_the_first_places_is_not_taken_for_the_next() {
    explore_within(2, || hands_its_slot_on(true, true));
}

/// A fault fills a hole while an invalidation covers it. It may map a page larger than a region, so it scans all
/// places. If the set `grows`, an invalidation of other frames holds its one place.
fn fill_far(grows: bool) -> impl Fn() + Send + Sync + 'static {
    move || {
        let active = Active::with_places(if grows { 1 } else { 2 });
        let shared = Arc::new(Shared { active, ..Shared::new(hole(0), hole(0)) });
        let elsewhere = grows.then(|| shared.active.begin(BESIDE.0, BESIDE.1));
        let theirs = shared.clone();
        let fault = thread::spawn(move || {
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
        shared.assert_nothing_taken_back();
    }
}

#[test]
fn a_fault_that_looks_at_all_places_sees_those_beyond_the_first() {
    explore_within(2, fill_far(false));
    explore_within(2, fill_far(true));
}

/// Two faults fill the same hole while an invalidation covers it.
fn fill_at_once() {
    let shared = Arc::new(Shared::new(hole(0), hole(0)));
    let faults = [(), ()].map(|()| {
        let theirs = shared.clone();
        thread::spawn(move || {
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
    for fault in faults {
        fault.join().expect("the fault ends");
    }
    shared.assert_nothing_taken_back();
}

#[test]
fn two_faults_on_one_page_install_nothing_taken_back() {
    explore_within(2, fill_at_once);
}
