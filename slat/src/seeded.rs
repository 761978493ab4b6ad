//! Mistakes made on purpose, to show that the tests find each of them.
//!
//! Every race in this crate is prevented by some step: a second look, a fence, a flush before a free. Each such step
//! has a name here, and the code beside it reads `seeded!(Name)`, which is the constant `false` outside tests. A test
//! that guards the step also runs the code without it, and must then fail. `cargo xtask nightly --only seeded-bugs`
//! runs all of them, and prints the tool and the executions of each.
//!
//! One mistake at a time: [`with`] makes it on this thread (loom and shuttle run all their threads on one), and the
//! variable `SLAT_SEEDED`, under `--cfg seeded`, in the whole process. The tests of `slat-slots` use the variable only.

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
    /// Guests, devices, pins, swap, limits and merging on `slat-mm`: `mm/tests/load`.
    Load,
    /// Guests on processors that they share: `vcpu/tests/vcpu`.
    Shared,
    /// A test of `slat-mm`'s own: `mm/tests/mm`.
    Host,
    /// A unit test beside the code.
    Unit,
    /// Panics of each callback in turn, and memory that runs out: `inject_tests`.
    Inject,
    /// Small worlds under Miri: `slat/tests/miri`.
    Miri,
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

    // --- shuttle: steps of the whole engine ---

    // --- history: what is wrong for one instant, or owes too little ---

    // --- shuttle: steps of the whole engine ---

    // --- history: what is wrong for one instant, or owes too little ---
    // --- fuzz: ranges and counts ---
    PartRoundedDown "part-rounded-down" Fuzz "a host range that ends inside a page leaves that page mapped",
    RowPastEnd "row-past-end" Fuzz "a row of entries is edited to the end of its table, not of the range",
    MarkAcross "mark-across" Fuzz "pages are marked 64 at a time from the first page on, across word boundaries",
    Incongruent "incongruent" Fuzz "a large page is mapped where guest and host addresses are not congruent",
    CarryLost "carry-lost" Fuzz "dirty bits of a table that begins inside a word are cut at the end of the word",
    PartsAlike "parts-alike" Fuzz "each part of a large page of a map gets the frame of the first part",
    // --- worlds: what guests stored ---

    // --- shared: what guests read on processors that they share ---

    // --- miri ---
    NoteNarrowed "note-narrowed" Miri "the place of a chunk's notes is computed from a reference to one of them",

    // --- callbacks that panic ---
    ArmedAfterEvent "armed-after-event" Inject "a transaction reports a grace period before it arms the log that it has published",
    ArmedAfterSplit "armed-after-split" Inject "a panic while large pages are split leaves a published log without arming",
    BusyForEver "busy-for-ever" Inject "a panic of the host while it takes memory back leaves a thread counted as busy",
    TakenAside "taken-aside" Inject "pages taken from a log are not in the harvest yet when the host is called",
    PartUnmarked "part-unmarked" Inject "an emulated store that panics half-way does not mark its page",
    ListenersCutShort "listeners-cut-short" Inject "if one listener panics, the others are not told of a store that was made",
    ToldBeforeCalled "told-before-called" Inject "a collected page counts as reported before the callback has it",

    // --- unit tests ---



    // --- sanitizers: memory ---
    SlotsFreedEarly "slots-freed-early" Sanitizer "leftovers of a version of the slots are reclaimed while it has readers",
    SectionEndedEarly "section-ended-early" Sanitizer "a version of the slots is used after the section in which it was read",
    LogFreedTwice "log-freed-twice" Sanitizer "the dirty log of a deleted slot is freed twice",
    LogLeaked "log-leaked" Sanitizer "the dirty log of a deleted slot is not freed",
}

mod making;

pub use making::{WRONG, each_fails_in_a_process, found, is, with};

#[cfg(test)]
mod tests;
