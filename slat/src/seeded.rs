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
    StampRelaxed "stamp-relaxed" Loom "the number of a region, or the epoch, is read by a relaxed load",
    QuietRelaxed "quiet-relaxed" Loom "N, with no invalidation active, is read by a relaxed load",
    ListRelaxed "list-relaxed" Loom "the list of a region's active invalidations is read by a relaxed load",
    EndRelaxed "end-relaxed" Loom "an invalidation that ends takes itself off the lists by a relaxed exchange",
    StateRelaxed "state-relaxed" Loom "whether an invalidation is active is read by a relaxed load",
    ClearRelaxed "clear-relaxed" Loom "an invalidation that has ended says so by a relaxed store",
    TakenRelaxed "taken-relaxed" Loom "an invalidation releases its place by a relaxed store",
    BeginRelaxed "begin-relaxed" Loom "an invalidation is announced by a relaxed exchange",
    RangesRelaxed "ranges-relaxed" Loom "the ranges of an active invalidation are read by relaxed loads",
    FirstRelaxed "first-relaxed" Loom "the first number of an active invalidation is read by a relaxed load",
    BeyondRelaxed "beyond-relaxed" Loom "whether invalidations are active beyond the first places is read by a relaxed load",
    BeyondLate "beyond-late" Loom "an invalidation beyond the first places is counted there after it has begun",
    BeyondEndRelaxed "beyond-end-relaxed" Loom "the count of invalidations beyond the first places is decremented by a relaxed operation",
    NewerHidden "newer-hidden" Loom "an invalidation that removed a mapping does not check whether a newer one covered the entry before",
    EpochKept "epoch-kept" Loom "a wide invalidation ends and does not move the epoch",
    NumberedFirst "numbered-first" Loom "an invalidation takes its number before it is listed",
    NumberedRelaxed "numbered-relaxed" Loom "an invalidation takes its number by a relaxed increment",
    EndUnnumbered "end-unnumbered" Loom "a wide invalidation that ends takes no number first",
    BeginUnfenced "begin-unfenced" Loom "no fence between the announcement of an invalidation and its reads of the entries",
    PaidRelaxed "paid-relaxed" Loom "a debt is marked as paid by a relaxed store",
    OthersRelaxed "others-relaxed" Loom "a relaxed load of N asks whether another invalidation owes a flush",

    // --- shuttle: steps of the whole engine ---
    StampUnconfirmed "stamp-unconfirmed" Shuttle "a fault does not check for active invalidations before it asks the host",
    AdoptedNarrowly "adopted-narrowly" Shuttle "an invalidation that adopts a debt beyond its range stays listed only on the lines of its own regions",
    NotAdopted "not-adopted" Shuttle "a walk that meets an unflushed hole does not adopt the debt",
    FrozenUnflushed "frozen-unflushed" Shuttle "an invalidation takes a frozen entry for one that no TLB holds",
    QuietBeside "quiet-beside" Shuttle "a vCPU treats the VM as quiet beside an active invalidation",
    RecoveredBeside "recovered-beside" Shuttle "a recovery does not check whether an invalidation covers part of the large page",
    KeptTooLate "kept-too-late" Shuttle "a leaf is zapped before its D bit is marked",

    // --- history: what is wrong for one instant, or owes too little ---
    FollowedOnce "followed-once" History "an invalidation that repeats its range, and removed a mapping again, does not look again",
    WidenedNarrowly "widened-narrowly" History "an invalidation that zaps beyond its range stays narrow",
    ReserveLeaked "reserve-leaked" Unit "table pages that an invalidation reserved are not given back",
    ReplaceThroughHole "replace-through-hole" History "a leaf is zapped before its replacement is written",
    UpperHoleUnnumbered "upper-hole-unnumbered" History "an invalidation numbers no holes above missing tables",
    LargeNotWidened "large-not-widened" History "a large leaf is zapped beyond what the invalidation has published",
    UnhookOwesNothing "unhook-owes-nothing" History "a table is unhooked without a flush of the links to it",
    ProtectOwesNothing "protect-owes-nothing" History "write permission is taken without a flush",
    LeakedUnpaid "leaked-unpaid" History "an invalidation whose debt was leaked ends without its flush",
    // --- fuzz: ranges and counts ---
    PartRoundedDown "part-rounded-down" Fuzz "a host range that ends inside a page leaves that page mapped",
    RowPastEnd "row-past-end" Fuzz "a row of entries is edited to the end of its table, not of the range",
    WholeByStart "whole-by-start" Fuzz "a large leaf that begins in a range counts as covered by it",
    FlushShort "flush-short" Fuzz "the flush for a row of entries is one page short",
    MarkAcross "mark-across" Fuzz "pages are marked 64 at a time from the first page on, across word boundaries",
    TrackedUncounted "tracked-uncounted" Fuzz "a withdrawn leaf that is zapped stays in the count of withdrawn leaves",
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
    CopiedUnsettled "copied-unsettled" Unit "a page is copied before the flush that an earlier change owes",
    PlaceNotKept "place-not-kept" Unit "an event that may not block takes another place of the active set when a page is reported",
    SeatNotKept "seat-not-kept" Unit "an event that may not block gives its seat back before its pages are reported",

    ToldFirstFrame "told-first-frame" Unit "every small leaf of a reported large page gets the first frame",
    DetachedEnded "detached-ended" Unit "an invalidation ends when it is detached from its VM",
    ShadowsForgotten "shadows-forgotten" Unit "an invalidation does not look for leaves of nested guests that map its frames",
    L1TagOnly "l1-tag-only" Unit "an invalidation that reached a nested guest flushes only L1's translations",
    SlotMovedUnderTables "slot-moved-under-tables" Unit "a memslot is deleted, and shadows of tables that lay in it stay",

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
