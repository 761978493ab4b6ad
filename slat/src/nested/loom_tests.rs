//! A fault of L2 beside an invalidation by the host: one L1 frame, one entry of a shadow, the shipped orderings.

use super::install::stands;
use crate::loom_tests::{explore, explore_within, finds_seeded};
use crate::notify::active::{Active, Page};
use crate::seeded::Bug;
use crate::shadows::{Reach, edit};
use crate::sync::once::Once;
use crate::sync::prim::{AtomicBool, AtomicU64, Relaxed, SeqCst, fence};
use crate::table::entry::{Entry, Version, Word};
use crate::table::formats::Ept4;
use crate::{Format, Gfn, Hva, Level, Span};
use loom::cell::UnsafeCell;
use std::sync::Arc;

const PAGE: Page = Page::small(Gfn(0), Hva(0x1000));
const NONE: Word = Word::hole(Version(0));
const HINT: Word = Word::frozen(1);

struct Shared {
    active: Active,
    /// Of the shadow.
    entry: Entry,
    /// Of the reverse map.
    hint: Entry,
    /// The host's page.
    frame: AtomicU64,
}

impl Shared {
    /// F1 to F9, once.
    fn fault(&self) {
        let met = self.entry.load();
        let epoch = self.active.epoch();
        let Ok(stamp) = self.active.stamp(epoch, PAGE, Level::K4, Word::hole(Version(0))) else { return };
        let frame = self.frame.load(Relaxed);
        if self.hint.load() == NONE {
            let _ = self.hint.cas(NONE, HINT);
        }
        if stands(&self.active, (epoch, stamp), PAGE.hva) && met.is_hole() {
            let _ = self.entry.cas(met, Word(frame << 12 | 7));
        }
    }

    /// The host goes over to frame 2.
    fn invalidate(&self) {
        let change = self.active.begin(Span::new(Gfn(0), Gfn(0)), Span::sized(PAGE.hva, 4096));
        if self.hint.load() != NONE {
            let word = self.entry.load();
            edit::<Ept4>(&self.active, &self.entry, word, Level::K4, Reach::Zap);
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

/// One fault, which may be made `times` in a row, beside an invalidation of its page.
fn beside(times: u32) -> impl Fn() + Send + Sync + 'static {
    move || {
        let (entry, hint) = (Entry::new(NONE), Entry::new(NONE));
        let shared = Arc::new(Shared { active: Active::new(), entry, hint, frame: AtomicU64::new(1) });
        let theirs = shared.clone();
        let fault = loom::thread::spawn(move || (0..times).for_each(|_| theirs.fault()));
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

#[test]
fn mistakes_about_hints() {
    for bug in [Bug::HintUnfenced, Bug::BeginUnfenced, Bug::HintUnchecked] {
        finds_seeded(bug, "taken back", beside(1));
    }
}

/// A value that is made at its first use.
#[test]
fn a_value_that_is_found_has_been_made() {
    explore(|| {
        let once = Arc::new(Once::<UnsafeCell<u64>>::default());
        let theirs = once.clone();
        let maker = loom::thread::spawn(move || {
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

/// A first nested guest, another vCPU that finds the shadows just then, and an invalidation.
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
        let maker = loom::thread::spawn(move || {
            maker.shadows.set_after(&maker.flag, ());
        });
        let fault = loom::thread::spawn(move || {
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
    finds_seeded(Bug::FlagAfterValue, "passed over", a_first_guest());
}
