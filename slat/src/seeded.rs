//! Mistakes made on purpose, to show that each would be found.
//!
//! Every race that this crate avoids is avoided by some step: a second look, a fence, a flush before a free. Here each
//! of those steps has a name, and the code beside it reads `seeded!(Name)`: `false`, and nothing else, in every build
//! but a test's. A test that is said to guard the step runs the shipped code without it and must fail; where it does not,
//! the test is worth nothing. `cargo xtask verify --only seeded-bugs` runs them all and prints what found each, and
//! after how many executions.
//!
//! One mistake at a time: [`with`] makes it on this thread (loom and shuttle run all their threads on one), and the
//! variable `SLAT_SEEDED`, under `--cfg seeded`, in the whole process.

use core::cell::Cell;
use std::string::String;
use std::sync::OnceLock;

/// What finds mistakes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tool {
    /// Every execution of a tiny scenario that the memory model allows: the `loom_tests`.
    Loom,
    /// Many schedules of a whole VM: the `shuttle_tests`.
    Shuttle,
    /// A look at the tables after each write: the `history` tests.
    History,
    /// Operations on a VM against a plain map: `fuzz/`.
    Fuzz,
    /// Guests that store beside everything else, and what was told of them: `vcpu/tests`.
    Worlds,
    /// A unit test beside the code.
    Unit,
    /// The test suite under `AddressSanitizer`, the soak under `ThreadSanitizer`.
    Sanitizer,
}

macro_rules! bugs {
    ($($bug:ident $name:literal $tool:ident $what:literal,)*) => {
        /// A mistake, named after what is left out or done wrong.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Bug {
            $(#[doc = $what] $bug,)*
        }

        impl Bug {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$bug,)*];

            /// What it is called on command lines and in tables.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$bug => $name,)* }
            }

            /// What has to find it.
            pub const fn tool(self) -> Tool {
                match self { $(Self::$bug => Tool::$tool,)* }
            }

            /// What is wrong.
            pub const fn what(self) -> &'static str {
                match self { $(Self::$bug => $what,)* }
            }
        }
    };
}

// One block for each tool.
bugs! {
    // --- loom: orderings ---
    StampRelaxed "stamp-relaxed" Loom "a stamp is taken by a relaxed load of W",

    // --- shuttle: steps of the whole engine ---
    StampUnconfirmed "stamp-unconfirmed" Shuttle "a fault does not look at W and the active set again before it asks the host",

    // --- history: what is wrong for one instant, or owes too little ---

    // --- fuzz: ranges and counts ---
    PartRoundedDown "part-rounded-down" Fuzz "a host range that ends inside a page leaves that page mapped",
    RowPastEnd "row-past-end" Fuzz "a row of entries is edited to the end of its table, not of the range",
    WholeByStart "whole-by-start" Fuzz "a large leaf that begins in a range counts as covered by it",
    FlushShort "flush-short" Fuzz "the flush for a row of entries is one page short",
    MarkAcross "mark-across" Fuzz "pages are marked 64 at a time from the first on, across the ends of words",
    OverlapBelow "overlap-below" Fuzz "a new slot is compared with the one that begins below it, not with one that begins inside",
    TrackedUncounted "tracked-uncounted" Fuzz "a leaf that goes while it is withdrawn is not counted off",
    Incongruent "incongruent" Fuzz "a large page is mapped where guest and host addresses are not congruent",
    SplitByPages "split-by-pages" Fuzz "a 1 GiB leaf splits into leaves that are one page apart",
    CarryLost "carry-lost" Fuzz "dirty bits of a table that begins inside a word are cut at its end",

    // --- worlds: what guests stored ---

    // --- unit tests ---
    CellReusedEarly "cell-reused-early" Unit "the seventeenth version of the slots overwrites the first under its readers",

    // --- sanitizers: memory ---
    SlotsFreedEarly "slots-freed-early" Sanitizer "what a version of the slots left over is taken back before its readers are gone",
    LogFreedTwice "log-freed-twice" Sanitizer "the dirty log of a slot that is gone is freed twice",
    LogLeaked "log-leaked" Sanitizer "the dirty log of a slot that is gone is not freed",
}

std::thread_local! {
    static MADE: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Whether `bug` is being made.
pub fn is(bug: Bug) -> bool {
    MADE.get() == Some(bug) || everywhere() == Some(bug)
}

/// The mistake that the whole process makes.
fn everywhere() -> Option<Bug> {
    static EVERYWHERE: OnceLock<Option<Bug>> = OnceLock::new();
    if !cfg!(seeded) {
        return None;
    }
    *EVERYWHERE.get_or_init(|| {
        let name: String = std::env::var("SLAT_SEEDED").ok()?;
        let bug = Bug::ALL.iter().find(|bug| bug.name() == name);
        Some(*bug.unwrap_or_else(|| panic!("SLAT_SEEDED={name}: there is no such mistake")))
    })
}

/// Runs `work` on this thread with the mistake made.
pub fn with<R>(bug: Bug, work: impl FnOnce() -> R) -> R {
    /// Undone however `work` ends.
    struct Undo(Option<Bug>);
    impl Drop for Undo {
        fn drop(&mut self) {
            MADE.set(self.0);
        }
    }
    let _undo = Undo(MADE.replace(Some(bug)));
    work()
}

/// Says that `bug` was found, in the words that `cargo xtask verify` reads; the last of `executions` showed it.
pub fn found(bug: Bug, executions: u64) {
    std::println!("SEEDED {} {:?} {executions}", bug.name(), bug.tool());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Read by `cargo xtask verify`.
    #[test]
    fn are_listed() {
        for (index, bug) in Bug::ALL.iter().enumerate() {
            std::println!("BUG {} {:?} {}", bug.name(), bug.tool(), bug.what());
            let same = Bug::ALL[..index].iter().any(|other| other.name() == bug.name());
            assert!(!same, "{}: two mistakes of that name", bug.name());
        }
    }

    #[test]
    fn one_is_made_where_it_was_asked_for() {
        let bug = Bug::ALL[0];
        assert!(!is(bug));
        with(bug, || assert!(is(bug) && !is(Bug::ALL[1])));
        assert!(!is(bug));
    }
}
