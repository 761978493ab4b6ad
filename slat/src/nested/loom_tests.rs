//! A fault of L2 and an invalidation by the host: one L1 frame, one entry of a shadow, the shipped orderings.

use super::freeze::{freeze, stands, thaw_with};
use crate::active::{Active, Page};
use crate::fault::pursuit::{Sought, Wanted};
use crate::loom_tests::{UnsafeCell, explore, explore_within, thread};
use crate::shadows::{Drops, FlushLine, LeafRow, Reach, Rows, WalkCount, edit, frozen, unlink};
use crate::slots::watched::Watched;
use crate::sync::once::Once;
use crate::sync::prim::{AtomicBool, AtomicU32, AtomicU64, Relaxed, SeqCst, fence};
use crate::table::entry::{Entry, Version, Word};
use crate::table::formats::Ept4;
use crate::{Access, Format, Gfn, Hva, Level, MemoryType, Pfn, Slot, SlotId, Span, VcpuId};
use std::sync::Arc;

const PAGE: Page = Page::small(Gfn(0), Hva(0x1000));
const NONE: Word = Word::hole(Version(0));
const HINT: Word = Word::frozen(1);

struct Shared {
    active: Active,
    /// An entry of the shadow.
    entry: Entry,
    /// An entry of the reverse map.
    hint: Entry,
    /// The host's page.
    frame: AtomicU64,
}

impl Shared {
    /// One attempt: F1 to F9.
    fn fault(&self) {
        let met = self.entry.load();
        let (start, watched) = (self.active.epoch(), Watched::default());
        let slot = Slot::new(SlotId(0), PAGE.gfn, 1, PAGE.hva);
        let sought = start.find(Wanted::new(PAGE.gfn, Access::Read), |_| Some(slot));
        let stamp =
            |sought: Sought| sought.stamp((&self.active, &watched), (Level::K4, Level::K4), Word::OLDEST);
        let Ok(pursuit) = sought.and_then(stamp) else { return };
        let frame = self.frame.load(Relaxed);
        if self.hint.load() == NONE {
            let _ = self.hint.cas(NONE, HINT);
        }
        let stands = || stands(&self.active, &pursuit);
        let mine = frozen(VcpuId(0));
        if met.is_hole()
            && let Some(frozen) = freeze(&self.entry, mine, None, stands)
        {
            thaw_with(frozen, None, Word(frame << 12 | 7), row(frame));
        }
    }

    /// The host changes to frame 2.
    fn invalidate(&self) {
        let change = self.active.begin(Span::new(Gfn(0), Gfn(0)), Span::sized(PAGE.hva, 4096));
        if self.hint.load() != NONE {
            let word = self.entry.load();
            let drops = Drops::default();
            edit::<Ept4>(&drops.taking(&self.active), &self.entry, word, Level::K4, Reach::Zap);
        }
        change.flushed();
        let hint = self.hint.load();
        if hint != NONE {
            let _ = self.hint.cas(hint, NONE);
        }
        self.frame.store(2, Relaxed);
        drop(change);
    }
}

/// A fault, repeated at most `times` times, and an invalidation of its page.
fn beside(times: u32) -> impl Fn() + Send + Sync + 'static {
    move || {
        let (entry, hint) = (Entry::new(NONE), Entry::new(NONE));
        let shared = Arc::new(Shared { active: Active::new(), entry, hint, frame: AtomicU64::new(1) });
        let theirs = shared.clone();
        let fault = thread::spawn(move || (0..times).for_each(|_| theirs.fault()));
        shared.invalidate();
        fault.join().expect("it ends");
        let word = shared.entry.load();
        if Ept4::is_present(word) {
            assert_eq!(word.0 >> 12, 2, "a frame that the host has taken back");
            assert_eq!(shared.hint.load(), HINT, "a leaf that no hint leads to");
        }
    }
}

#[test]
fn an_invalidation_finds_the_hint_or_the_fault_finds_the_invalidation() {
    explore(beside(1));
}

#[test]
fn a_leaf_that_stays_keeps_its_hint() {
    explore_within(3, beside(2));
}

/// A value that is made at its first use.
#[test]
fn a_value_that_is_found_has_been_made() {
    explore(|| {
        let once = Arc::new(Once::<UnsafeCell<u64>>::default());
        let theirs = once.clone();
        let maker = thread::spawn(move || {
            // SAFETY: written before it is shared.
            theirs.set(UnsafeCell::new(7)).with(|value| unsafe { *value })
        });
        // SAFETY: as above.
        let read = |value: &UnsafeCell<u64>| value.with(|value| unsafe { *value });
        assert!(once.get().is_none_or(|value| read(value) == 7));
        assert_eq!(read(once.set(UnsafeCell::new(7))), 7);
        assert_eq!(maker.join().expect("it ends"), 7);
    });
}

/// A first nested guest, another vCPU that finds the shadows at that moment, and an invalidation.
fn a_first_guest() -> impl Fn() + Send + Sync + 'static {
    || {
        #[derive(Default)]
        struct First {
            flag: AtomicBool,
            shadows: Once<()>,
            announced: AtomicBool,
            hint: AtomicBool,
        }
        let first = Arc::new(First::default());
        let (maker, fault) = (first.clone(), first.clone());
        let maker = thread::spawn(move || {
            maker.shadows.set_after(&maker.flag, (), drop);
        });
        let fault = thread::spawn(move || {
            fault.shadows.get().is_some_and(|()| {
                fault.hint.store(true, Relaxed);
                fence(SeqCst);
                !fault.announced.load(Relaxed)
            })
        });
        first.announced.store(true, Relaxed);
        fence(SeqCst);
        let reaches = first.flag.load(Relaxed) && first.hint.load(Relaxed);
        let maps = fault.join().expect("it ends");
        maker.join().expect("it ends");
        assert!(reaches || !maps, "a leaf that the invalidation has passed over");
    }
}

#[test]
fn an_invalidation_beside_the_first_nested_guest_finds_the_hint() {
    explore(a_first_guest());
}

/// One entry of a shadow with its row, and the frame that L1's table names.
struct Kept {
    numbers: Active,
    drops: Drops,
    line: FlushLine,
    entry: Entry,
    row: [AtomicU32; 1],
    t: AtomicU64,
}

const OLD: &str = "what L1 has flushed";
const STRANGE: &str = "the row of another leaf";
const LOST: &str = "a frozen entry that no edit has condemned is lost";
const CACHED: &str = "a TLB has what is gone";

fn leaf(frame: u64) -> Word {
    Word(frame << 12 | 0x307)
}

fn row(frame: u64) -> LeafRow {
    LeafRow::new(Gfn(frame), MemoryType::WriteBack)
}

impl Kept {
    fn new(entry: Word) -> Arc<Self> {
        let numbers = Active::new();
        let (drops, line, row) = (Drops::default(), FlushLine::default(), [AtomicU32::new(u32::MAX)]);
        Arc::new(Self { numbers, drops, line, entry: Entry::new(entry), row, t: AtomicU64::new(1) })
    }

    /// F1 to F9, once: maps the frame that T names.
    fn fault(&self, vcpu: u32) {
        self.fault_of(vcpu, false);
    }

    /// F1 to F9, once, for a part of a page of T's.
    fn fault_in_part(&self, vcpu: u32) {
        self.fault_of(vcpu, true);
    }

    fn fault_of(&self, vcpu: u32, is_part: bool) {
        let met = self.entry.load();
        let line = self.line.now();
        let frame = self.t.load(Relaxed);
        let stands = || {
            fence(SeqCst);
            self.line.now() == line
        };
        let mine = frozen(VcpuId(vcpu));
        if met.is_hole()
            && let Some(frozen) = freeze(&self.entry, mine, is_part.then_some(&self.line), stands)
        {
            let rows = Some((Rows::apart(&self.row), 0));
            thaw_with(frozen, rows, leaf(frame), row(frame));
        }
    }

    /// L1 names another frame, and flushes.
    fn flush(&self, frame: u64) {
        self.flush_if(frame, |_| true);
    }

    /// L1 names another frame, and flushes; the flush covers this entry if `looks` says so.
    fn flush_if(&self, frame: u64, looks: impl Fn(&FlushLine) -> bool) {
        self.t.store(frame, Relaxed);
        self.line.announce();
        if !looks(&self.line) {
            return;
        }
        let word = self.entry.load();
        let stays = Ept4::is_present(word) && Rows::apart(&self.row).get(0).is(row(frame));
        if !stays && !word.is_hole() {
            edit::<Ept4>(&self.drops.taking(&self.numbers), &self.entry, word, Level::K4, Reach::Zap);
        }
    }
}

/// At the end the entry holds T's frame, with its own row.
fn flushed(and_a_fault: bool) -> impl Fn() + Send + Sync + 'static {
    move || {
        let kept = Kept::new(NONE);
        let theirs = kept.clone();
        let fault = thread::spawn(move || theirs.fault(1));
        kept.flush(2);
        if and_a_fault {
            kept.fault(2);
        }
        fault.join().expect("it ends");
        let word = kept.entry.load();
        if Ept4::is_present(word) {
            assert_eq!(word, leaf(2), "{OLD}");
            assert!(Rows::apart(&kept.row).get(0).is(row(2)), "{STRANGE}");
        }
        assert!(!word.is_frozen());
    }
}

#[test]
fn a_flush_meets_the_frozen_entry_or_the_fault_finds_the_line_moved() {
    explore(flushed(false));
    explore_within(3, flushed(true));
}

/// Two vCPUs fault on one entry, and nothing else happens: one of them maps the page.
fn by_two_vcpus() {
    let kept = Kept::new(NONE);
    let theirs = kept.clone();
    let fault = thread::spawn(move || theirs.fault(1));
    kept.fault(2);
    fault.join().expect("it ends");
    assert_eq!(kept.entry.load(), leaf(1), "{LOST}");
}

#[test]
fn an_entry_is_thawed_by_the_thread_that_froze_it() {
    explore(by_two_vcpus);
}

/// A fault maps a part of a page of T's. A flush of another address in the page must cover this entry, too.
fn in_parts() {
    let kept = Kept::new(NONE);
    let theirs = kept.clone();
    let fault = thread::spawn(move || theirs.fault_in_part(1));
    kept.flush_if(2, FlushLine::splinters);
    fault.join().expect("it ends");
    let word = kept.entry.load();
    assert!(!Ept4::is_present(word) || word == leaf(2), "{OLD}");
}

#[test]
fn a_flush_of_an_address_meets_each_part_or_the_fault_finds_the_line_moved() {
    explore(in_parts);
}

/// A thread that meets a leaf reads its row.
fn with_row() {
    let kept = Kept::new(NONE);
    let theirs = kept.clone();
    let reader = thread::spawn(move || {
        if Ept4::is_present(theirs.entry.load()) {
            assert!(Rows::apart(&theirs.row).get(0).is(row(1)), "{STRANGE}");
        }
    });
    kept.fault(1);
    reader.join().expect("it ends");
}

#[test]
fn a_leaf_comes_with_its_row() {
    explore(with_row);
}

/// A vCPU whose TLB holds a leaf checks twice for drops, while the leaf is dropped.
fn dropped() {
    let kept = Kept::new(leaf(1));
    let theirs = kept.clone();
    let other = thread::spawn(move || theirs.flush(2));
    let (mut cached, mut forgot) = (true, Version::default());
    for _ in 0..2 {
        let gone = !Ept4::is_present(kept.entry.load());
        if kept.drops.since(forgot) {
            forgot = kept.numbers.now();
            cached = Ept4::is_present(kept.entry.load());
        }
        assert!(!gone || !cached, "{CACHED}");
    }
    other.join().expect("it ends");
}

#[test]
fn a_leaf_that_is_gone_is_found_among_the_drops() {
    explore(dropped);
}

/// A shadow with one table below its root.
struct Linked {
    walks: WalkCount,
    drops: Drops,
    numbers: Active,
    link: Entry,
    table: UnsafeCell<u64>,
}

const GONE: &str = "a TLB has what was unlinked";

impl Linked {
    fn new() -> Arc<Self> {
        let (walks, drops, numbers) = (WalkCount::default(), Drops::default(), Active::new());
        let link = Entry::new(Ept4::link(Pfn(1), Level::M2));
        Arc::new(Self { walks, drops, numbers, link, table: UnsafeCell::new(0) })
    }

    fn unlink(&self) -> bool {
        unlink::<Ept4>(&self.drops.taking(&self.numbers), &self.link, self.link.load(), Level::M2)
    }
}

/// A walk of a shadow, and a thread that frees the table which the walk reaches.
fn behind_a_door() {
    let shadow = Linked::new();
    let theirs = shadow.clone();
    let walk = thread::spawn(move || {
        let _inside = theirs.walks.enter();
        if Ept4::is_table(theirs.link.load(), Level::M2) {
            // SAFETY: in a counted walk; loom reports concurrent writes.
            theirs.table.with(|table| unsafe { *table });
        }
    });
    assert!(shadow.unlink());
    shadow.walks.outlast();
    // SAFETY: no walk is in it.
    shadow.table.with_mut(|table| unsafe { *table += 1 });
    walk.join().expect("it ends");
}

#[test]
fn a_table_of_a_shadow_is_freed_when_no_walk_is_in_it() {
    explore(behind_a_door);
}

/// A vCPU whose TLB walked through the table flushes for L1, while the table is unlinked and not yet flushed.
fn unlinked() {
    let shadow = Linked::new();
    let theirs = shadow.clone();
    let vcpu = thread::spawn(move || {
        let finds_nothing = !Ept4::is_table(theirs.link.load(), Level::M2);
        !finds_nothing || theirs.drops.since(Version::default())
    });
    assert!(shadow.unlink());
    assert!(vcpu.join().expect("it ends"), "{GONE}");
}

#[test]
fn a_table_that_was_unlinked_is_found_among_the_drops() {
    explore(unlinked);
}
