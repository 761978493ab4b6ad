//! Loom tests of a split beside a fault that restores a permission of the large leaf, or of a small one.

use super::*;
use crate::addr::Pfn;
use crate::loom_tests::{explore, finds, thread};
use crate::table::Access;
use crate::table::entry::Entry;
use crate::table::formats::Ept4;
use crate::table::radix::fill_parts;
use slat_slots::MemoryType;
use std::sync::Arc;

const LOST: &str = "a permission that was given is gone";
const HOLE: &str = "a hole where a page is mapped";

/// The entry of 2 MiB, and the first small entry.
struct Shared {
    upper: Entry,
    lower: Entry,
}

impl Shared {
    /// Returns the entry that maps the page.
    fn at(&self) -> (&Entry, Word) {
        let word = self.upper.load();
        if Ept4::is_table(word, Level::M2) { (&self.lower, self.lower.load()) } else { (&self.upper, word) }
    }

    /// Splits like [`replace`]. With `stale`, later attempts use the leaf as first loaded.
    fn split(&self, stale: bool) {
        let mut word = self.upper.load();
        let mut large = Ept4::decode(word);
        loop {
            fill_parts::<Ept4>(core::slice::from_ref(&self.lower), word, large, Level::K4);
            match self.upper.cas(word, Ept4::link(Pfn(1), Level::M2)) {
                Ok(()) => return,
                Err(found) => word = found,
            }
            if !stale {
                large = Ept4::decode(word);
            }
        }
    }
}

fn splits(stale: bool) -> impl Fn() + Send + Sync + 'static {
    move || {
        let large = Leaf {
            pfn: Pfn(512),
            perms: Perms::RX,
            memory: MemoryType::WriteBack,
            host_writable: true,
            accessed: true,
            dirty: false,
        };
        let upper = Entry::new(Ept4::leaf(&large, Level::M2));
        let shared = Arc::new(Shared { upper, lower: Entry::new(Word::hole(Default::default())) });
        let theirs = shared.clone();
        let fault = thread::spawn(move || {
            loop {
                let (entry, word) = theirs.at();
                assert!(Ept4::is_present(word), "{HOLE}");
                let given = Word(Ept4::set_writable(word, true).0 | Ept4::touch(Access::Write));
                if entry.cas(word, given).is_ok() {
                    return;
                }
            }
        });
        shared.split(stale);
        fault.join().expect("the fault ends");
        assert!(Ept4::read_leaf(shared.at().1).perms.allows(Access::Write), "{LOST}");
    }
}

#[test]
fn a_split_keeps_what_a_fault_gives() {
    explore(splits(false));
}

#[test]
fn mistake_a_leaf_is_not_read_again() {
    assert!(finds(LOST, splits(true)));
}
