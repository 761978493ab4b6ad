//! Loom tests of aging, without a lock or flush, beside a zap of the leaf and its table, and a hardware walker.

use super::super::scan::Accessed;
use super::*;
use crate::loom_tests::{RACE, UnsafeCell, explore, finds, thread};
use crate::sync::barrier::Barrier;
use crate::sync::readside::ReadSide;
use crate::table::Version;
use crate::table::formats::Ept4;
use crate::table::memory::Heap;
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    /// Aging stores the old leaf without its bit.
    Store,
    /// Aging is outside any section.
    NoSection,
}

struct Shared {
    reads: ReadSide,
    entry: Entry,
    /// The memory of the entry.
    page: UnsafeCell<u64>,
}

fn ages(mistake: Mistake) -> impl Fn() + Send + Sync + 'static {
    move || {
        let leaf = Word(1 << 12 | 7 | Ept4::ACCESSED);
        let reads = ReadSide::new(1, Barrier::symmetric());
        let shared = Arc::new(Shared { reads, entry: Entry::new(leaf), page: UnsafeCell::new(0) });
        let theirs = shared.clone();
        let aging = thread::spawn(move || {
            let Shared { reads, entry, page } = &*theirs;
            let seat = reads.claim(0).expect("a free seat");
            let _section = (mistake != Mistake::NoSection).then(|| reads.enter(&seat));
            let word = entry.peek();
            if word.is_hole() {
                return;
            }
            // SAFETY: loom checks that the memory is not reused.
            page.with(|page| unsafe { *page });
            if mistake == Mistake::Store {
                entry.store(Word(word.0 & !Ept4::ACCESSED));
            } else {
                let pass = Pass::<Ept4, Accessed, Heap, _>::new(&Heap, How::by_links(), |_| true);
                pass.clear_young(entry);
            }
        });
        let Shared { reads, entry, page } = &*shared;
        let written = entry.touch(entry.load(), Ept4::DIRTY);
        let mut word = entry.load();
        while let Err(found) = entry.cas(word, Word::hole(Version(1))) {
            word = found;
        }
        assert!(!written || word.0 & Ept4::DIRTY != 0, "a store that no harvest will find");
        reads.synchronize();
        // SAFETY: loom checks that no thread reads it.
        page.with_mut(|page| unsafe { *page = 1 });
        aging.join().expect("it ends");
        assert!(entry.load().is_hole(), "a leaf that comes back");
    }
}

#[test]
fn aging_brings_back_no_leaf_and_loses_no_store() {
    explore(ages(Mistake::None));
}

#[test]
fn mistake_aging_by_a_store() {
    assert!(finds("a store that", ages(Mistake::Store)) || finds("comes back", ages(Mistake::Store)));
}

#[test]
fn mistake_aging_in_no_section() {
    assert!(finds(RACE, ages(Mistake::NoSection)));
}
