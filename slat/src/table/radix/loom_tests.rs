//! Loom tests of tables that are linked beside a walk, and of tables that are unhooked during a walk.

use super::*;
use crate::active::{Active, Page};
use crate::loom_tests::{RACE, UnsafeCell, explore, explore_within, finds, thread};
use crate::sync::barrier::Barrier;
use crate::sync::prim::Relaxed;
use crate::sync::readside::ReadSide;
use crate::table::Kind;
use crate::table::Version;
use crate::table::formats::Ept4;
use crate::{Hva, Span};
use std::sync::Arc;

const GFNS: Span<Gfn> = Span::new(Gfn(0), Gfn(1));
const NOWHERE: Span<Hva> = Span::new(Hva(0), Hva(0));
const UNFILLED: &str = "a table is found before it is filled";

fn hole(version: u64) -> Word {
    Word::hole(Version(version))
}

/// A link to the table with this index.
fn link(table: u64) -> Word {
    Ept4::link(Pfn(table), Level::M2)
}

fn leaf(frame: u64) -> Word {
    Word(frame << 12 | 7)
}

/// The index of the table that `word` links.
fn table_of(word: Word) -> Option<usize> {
    match word.kind::<Ept4>(Level::M2) {
        Kind::Table(Pfn(table)) => Some(table as usize),
        _ => None,
    }
}

/// One thread fills a table and links it by `publish`; another follows the link if it finds one.
fn links(publish: fn(&Entry)) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new((Entry::new(hole(3)), Entry::new(leaf(9))));
        let theirs = shared.clone();
        let walk = thread::spawn(move || {
            let (upper, lower) = &*theirs;
            if table_of(upper.load()).is_some() {
                assert_eq!(lower.load(), hole(3), "{UNFILLED}");
            }
        });
        let (upper, lower) = &*shared;
        lower.fill(hole(3));
        publish(upper);
        walk.join().expect("it ends");
    }
}

#[test]
fn a_walk_that_finds_a_link_finds_a_filled_table() {
    explore(links(|upper| assert_eq!(upper.cas(hole(3), link(0)), Ok(()))));
}

/// As above, by a store to an entry that has one writer.
#[test]
fn a_walk_that_finds_a_stored_link_finds_a_filled_table() {
    explore(links(|upper| upper.store(link(0))));
}

/// Links a filled table, or loses the race. Looks into the table that is linked.
fn links_one_of((upper, tables): &(Entry, [Entry; 2]), table: usize) {
    tables[table].fill(hole(3));
    let linked = upper.cas(hole(3), link(table as u64)).map_or_else(|found| found, |()| link(table as u64));
    assert_eq!(tables[table_of(linked).expect("a link")].load(), hole(3), "{UNFILLED}");
}

#[test]
fn a_thread_that_loses_the_race_to_link_finds_a_filled_table() {
    explore(|| {
        let shared = Arc::new((Entry::new(hole(3)), [0, 1].map(|_| Entry::new(leaf(9)))));
        let theirs = shared.clone();
        let other = thread::spawn(move || links_one_of(&theirs, 0));
        links_one_of(&shared, 1);
        other.join().expect("it ends");
    });
}

/// One thread replaces the root; another reads it.
fn replaces_the_root() {
    let first = Entry::new(hole(3));
    let radix = Radix::<Ept4> { root: RootWord(AtomicU64::new(1)), _format: PhantomData };
    let shared = Arc::new((radix, [first, Entry::new(leaf(9))]));
    let theirs = shared.clone();
    let walk = thread::spawn(move || {
        let (radix, roots) = &*theirs;
        let root = radix.root_word().pfn();
        assert_eq!(roots[root.0 as usize - 1].load(), hole(3), "{UNFILLED}");
    });
    let (radix, roots) = &*shared;
    roots[1].fill(hole(3));
    // No page is accessed: roots are numbers here.
    assert_eq!(radix.root_word().replace(Pfn(2)), Pfn(1));
    walk.join().expect("it ends");
}

#[test]
fn a_walk_that_finds_a_root_finds_a_filled_table() {
    explore(replaces_the_root);
}

/// A table of one entry, and its memory.
struct Table {
    entry: Entry,
    page: UnsafeCell<u64>,
}

struct Shared {
    reads: ReadSide,
    active: Active,
    upper: Entry,
    tables: [Table; 2],
    /// The host's page.
    frame: AtomicU64,
}

impl Shared {
    fn new() -> Self {
        let table = |word| Table { entry: Entry::new(word), page: UnsafeCell::new(0) };
        Self {
            reads: ReadSide::new(1, Barrier::symmetric()),
            active: Active::new(),
            upper: Entry::new(link(0)),
            tables: [table(leaf(1)), table(hole(0))],
            frame: AtomicU64::new(1),
        }
    }

    /// Makes one attempt at a fault.
    fn fault(&self) {
        let Some(seat) = self.reads.claim(0) else { return };
        let _section = self.reads.enter(&seat);
        let page = Page::small(GFNS.start, Hva(0x1000));
        let Ok(stamp) = self.active.stamp(self.active.epoch(), page, Level::M2, Word::OLDEST) else { return };
        let frame = self.frame.load(Relaxed);
        let mut upper = self.upper.load();
        if upper.is_hole() {
            self.tables[1].entry.fill(upper);
            upper = self.upper.cas(upper, link(1)).map_or_else(|found| found, |()| link(1));
        }
        let Some(table) = table_of(upper) else { return };
        let Table { entry, page } = &self.tables[table];
        // SAFETY: loom checks that the memory is not reused.
        page.with(|page| unsafe { *page });
        let word = entry.load();
        if word.is_hole() && word <= stamp.newest {
            let _ = entry.cas(word, leaf(frame));
        }
    }

    /// Unhooks the table, and then reuses its memory.
    fn zap(&self, grace: bool) {
        let ticket = self.active.begin(GFNS, NOWHERE);
        assert_eq!(self.upper.cas(link(0), Word::hole(ticket.version())), Ok(()));
        ticket.flushed();
        self.frame.store(2, Relaxed);
        drop(ticket);
        if grace {
            self.reads.synchronize();
        }
        // SAFETY: loom checks that no walk is in it.
        self.tables[0].page.with_mut(|page| unsafe { *page = 1 });
    }
}

/// A fault beside a zap that unhooks its table.
fn retires(grace: bool) -> impl Fn() + Send + Sync + 'static {
    move || {
        let shared = Arc::new(Shared::new());
        let theirs = shared.clone();
        let fault = thread::spawn(move || theirs.fault());
        shared.zap(grace);
        fault.join().expect("the fault ends");
        if let Some(table) = table_of(shared.upper.load()) {
            let word = shared.tables[table].entry.load();
            assert!(word.is_hole() || word == leaf(2), "a frame that the host has taken back");
        }
    }
}

#[test]
fn a_table_is_not_reused_while_a_fault_is_inside_it() {
    explore_within(2, retires(true));
}

#[test]
fn mistake_no_grace_period_for_a_table() {
    assert!(finds(RACE, retires(false)));
}
