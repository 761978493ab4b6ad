//! Hints of one page of L1 in blocks: faults that enter theirs, and replace hints whose leaves are gone.

use super::hints::{Doubts, HINTS, HintBlock, RmapHint, SpareBlock};
use super::{Frozen, HOLE, frozen};
use crate::loom_tests::{explore, explore_within, thread};
use crate::sync::prim::{AtomicBool, Relaxed, SeqCst, fence};
use crate::table::entry::{Entry, Word};
use crate::{Gfn, VcpuId};
use std::sync::Arc;
use std::vec::Vec;

const LOST: &str = "a leaf that no hint leads to";
const MISSED: &str = "a leaf that the invalidation has not found";
const LEAF: Word = Word(7 << 12 | 7);
/// The number of entries, each with a frame of L2 and a hint. The first block has no room for the last two.
const PLACES: usize = HINTS + 2;
/// The hints of the first block that stay: their leaves are mapped. loom's block has none.
const STAY: usize = HINTS - 2;

/// A page of L1, and the entries of a shadow that may map it.
struct Page {
    first: HintBlock,
    doubts: Doubts,
    entries: [Entry; PLACES],
    /// Whether an invalidation of the page was announced.
    announced: AtomicBool,
}

/// The index of an entry by its number without those that stay, which follow the first two.
fn place(nth: usize) -> usize {
    if nth < 2 { nth } else { nth + STAY }
}

fn hint(nth: usize) -> RmapHint {
    RmapHint { shadow: 0, g2: Gfn(nth as u64) }
}

impl Page {
    /// A page whose first block has hints for the first two entries, of which those that are `mapped` have their leaf,
    /// and for those that stay.
    fn new(mapped: &[usize]) -> Arc<Self> {
        let first = HintBlock::default();
        first.fill(core::array::from_fn::<_, HINTS, _>(|nth| Some(hint(nth))));
        let is_mapped = |nth: usize| mapped.contains(&nth) || (2..2 + STAY).contains(&nth);
        let entry = |nth: usize| Entry::new(if is_mapped(nth) { LEAF } else { HOLE });
        let (entries, announced) = (core::array::from_fn(entry), AtomicBool::new(false));
        Arc::new(Self { first, doubts: Doubts::default(), entries, announced })
    }

    /// F7 to F9: enters the hint of an entry, and maps the page there.
    fn fault(&self, nth: usize) {
        let is_gone = |other: RmapHint| self.entries[other.g2.0 as usize].load().is_hole();
        let entered = self.first.enter(
            hint(nth),
            &mut alloc::vec![SpareBlock::leaked()],
            (&self.doubts, Gfn(0)),
            is_gone,
        );
        let entered = entered.expect("there is a block");
        if let Ok(frozen) = Frozen::new(&self.entries[nth], HOLE, frozen(VcpuId(nth as u32))) {
            fence(SeqCst);
            if entered.stands() && !self.announced.load(Relaxed) {
                frozen.thaw(|entry, mine| entry.cas(mine, LEAF));
            }
        }
    }

    /// An invalidation of the page: zaps the entries that its hints name.
    fn invalidate(&self) {
        self.announced.store(true, Relaxed);
        fence(SeqCst);
        self.first.each(0, &mut 0, &mut |at| {
            let entry = &self.entries[at.hint().g2.0 as usize];
            let mut word = entry.load();
            while word != HOLE
                && let Err(found) = entry.cas(word, HOLE)
            {
                word = found;
            }
            true
        });
    }

    /// Panics if a leaf has no hint.
    fn check(&self) {
        let mut hints = Vec::new();
        self.first.each(0, &mut 0, &mut |at| {
            hints.push(at.hint());
            true
        });
        for (nth, entry) in self.entries.iter().enumerate() {
            assert!(entry.load() != LEAF || hints.contains(&hint(nth)), "{LOST}");
        }
    }
}

/// Faults at the same time on these entries of a page.
fn faults(mapped: &'static [usize], at: &'static [usize]) -> impl Fn() + Send + Sync + 'static {
    move || {
        let page = Page::new(mapped);
        let (&last, others) = at.split_last().expect("one at least");
        let spawn = |&nth: &usize| {
            let page = page.clone();
            thread::spawn(move || page.fault(place(nth)))
        };
        let threads: Vec<_> = others.iter().map(spawn).collect();
        page.fault(place(last));
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        page.check();
    }
}

#[test]
fn a_hint_is_replaced_or_its_fault_maps_the_page() {
    explore_within(3, faults(&[1], &[0, 2]));
}

#[test]
fn hints_of_two_faults_fit_where_no_block_has_room() {
    explore_within(3, faults(&[0, 1], &[2, 3]));
}

#[test]
fn a_hint_that_was_made_firm_is_not_taken_for_the_doubted_one() {
    explore_within(2, faults(&[1], &[0, 2, 3]));
}

/// An invalidation beside a fault whose hint another fault may replace.
fn invalidated() {
    let page = Page::new(&[1]);
    let (theirs, others) = (page.clone(), page.clone());
    let fault = thread::spawn(move || theirs.fault(0));
    let replaces = thread::spawn(move || others.fault(place(2)));
    page.invalidate();
    fault.join().expect("it ends");
    replaces.join().expect("it ends");
    assert!(page.entries.iter().all(|entry| entry.load() == HOLE), "{MISSED}");
}

#[test]
fn an_invalidation_finds_each_leaf_while_hints_are_replaced() {
    explore_within(2, invalidated);
}

/// A walk that finds a block finds it whole, or loom reports a race with its making.
fn linked() {
    let page = Page::new(&[0, 1]);
    let theirs = page.clone();
    let walk = thread::spawn(move || {
        let mut found = 0;
        theirs.first.each(0, &mut 0, &mut |_| {
            found += 1;
            true
        });
        assert!(found >= HINTS, "{LOST}");
    });
    page.fault(place(2));
    walk.join().expect("it ends");
    page.check();
}

#[test]
fn a_walk_meets_the_hints_of_a_block_that_is_linked() {
    explore(linked);
}
