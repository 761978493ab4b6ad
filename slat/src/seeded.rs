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
    LargeUnlooked "large-unlooked" Shuttle "a fault maps a large page after it has checked one small page of it",
    StampLate "stamp-late" Shuttle "a fault takes its stamp after the host has answered",
    AdoptedNarrowly "adopted-narrowly" Shuttle "an invalidation that adopts a debt beyond its range stays listed only on the lines of its own regions",
    NotAdopted "not-adopted" Shuttle "a walk that meets an unflushed hole does not adopt the debt",
    FrozenUnflushed "frozen-unflushed" Shuttle "an invalidation takes a frozen entry for one that no TLB holds",
    UpgradeUnstamped "upgrade-unstamped" Shuttle "an upgrade does not check whether an invalidation covers the page that it has frozen",
    TableRemembered "table-remembered" Shuttle "a vCPU uses the table that it remembers although it has been unhooked",
    QuietBeside "quiet-beside" Shuttle "a vCPU treats the VM as quiet beside an active invalidation",
    QuietUndated "quiet-undated" Shuttle "a vCPU treats the VM as quiet although the epoch has moved since it found its table",
    RecoveredBeside "recovered-beside" Shuttle "a recovery does not check whether an invalidation covers part of the large page",
    SlotChangedStampKept "slot-changed-stamp-kept" Shuttle "a vCPU that looks up another slot keeps the stamp of the old slot",
    MmioUnlooked "mmio-unlooked" Shuttle "a hole that is newer than the stamp becomes an mmio word",
    SlotRemembered "slot-remembered" Shuttle "a vCPU uses the slot that it remembers although a new version was published",
    MarkedTooEarly "marked-too-early" Shuttle "a fault marks a page dirty before it makes it writable",
    MarksBeforeTables "marks-before-tables" Shuttle "a harvest by D bits takes the marks before it reads the tables",
    HarvestBeforeGrace "first-harvest-early" Shuttle "a log that begins with all pages dirty is harvested while faults that saw no log are under way",
    HarvestUnwaited "harvest-unwaited" Shuttle "a harvest by D bits does not wait for threads that have marked a leaf and will zap it",
    WatchUnasked "watch-unasked" Shuttle "a fault does not check after its stamp whether stores to the frame are tracked",
    WatchForgotten "watch-forgotten" Shuttle "the short path of a fault maps frames whose stores are tracked",
    KeptTooLate "kept-too-late" Shuttle "a leaf is zapped before its D bit is marked",

    // --- history: what is wrong for one instant, or owes too little ---
    FollowedOnce "followed-once" History "an invalidation that repeats its range, and removed a mapping again, does not look again",
    WidenedNarrowly "widened-narrowly" History "an invalidation that zaps beyond its range stays narrow",
    SlotTakenForPlain "slot-taken-for-plain" Unit "the short path of a fault maps pages of a device's memslot as ordinary memory",
    TypeUpgraded "type-upgraded" Unit "a page that becomes writable gets another memory type in place, without a flush",
    ReserveLeaked "reserve-leaked" Unit "table pages that an invalidation reserved are not given back",
    ReplaceThroughHole "replace-through-hole" History "a leaf is zapped before its replacement is written",
    UpperHoleUnnumbered "upper-hole-unnumbered" History "an invalidation numbers no holes above missing tables",
    LargeNotWidened "large-not-widened" History "a large leaf is zapped beyond what the invalidation has published",
    UnhookOwesNothing "unhook-owes-nothing" History "a table is unhooked without a flush of the links to it",
    ProtectOwesNothing "protect-owes-nothing" History "write permission is taken without a flush",
    HarvestFlushesShort "harvest-flushes-short" History "the flush of a harvest leaves out its last 64 pages",
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
    LeafUnmarked "leaf-unmarked" Worlds "a leaf is zapped and its D bit is lost",
    TableUnemptied "table-unemptied" Worlds "a table is unhooked and the D bits in it are lost",
    AnswerOutlived "answer-outlived" Unit "a leaf is upgraded to what the host said before an invalidation that has ended since",
    AnswerOfPart "answer-of-part" Unit "a large leaf is upgraded by an answer about a part of it, beside an invalidation of another part",
    MarkLookedUpLate "mark-looked-up-late" Unit "a page is marked in the log that its frame has after the store was allowed",
    RegainUnmarked "regain-unmarked" Worlds "write permission is restored, and the page is not marked",
    RingUnarmed "ring-unarmed" Worlds "the pages of a ring are reported, and not armed again",
    GivenBackLost "given-back-lost" Worlds "a harvest that is dropped does not give its bits back",

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
    MarkedAtOnce "marked-at-once" Unit "all pages of a range are marked dirty in one section",
    GivenBackAtOnce "given-back-at-once" Unit "all pages of a harvest are given back in one section",

    PendingBelieved "pending-believed" Unit "a vCPU that waits for a token does not ask the host once more",
    RestLost "rest-lost" Unit "frames that a population could not map are not handed back to the caller",
    EventForgotten "event-forgotten" Unit "the short path of a fault maps a page and calls no observer",
    ToldFirstFrame "told-first-frame" Unit "every small leaf of a reported large page gets the first frame",
    ResetUncollected "reset-uncollected" Unit "a reset of dirty rings drops entries that were pushed after the rings were read",
    DetachedEnded "detached-ended" Unit "an invalidation ends when it is detached from its VM",
    AgreedOnce "agreed-once" Unit "a fault compares the kind of memory that the guest names with the frame's only before its first attempt",
    LeafUncompared "leaf-uncompared" Unit "an upgrade accepts a leaf that reaches out of the slot",
    ShadowsForgotten "shadows-forgotten" Unit "an invalidation does not look for leaves of nested guests that map its frames",
    L1TagOnly "l1-tag-only" Unit "an invalidation that reached a nested guest flushes only L1's translations",
    SlotMovedUnderTables "slot-moved-under-tables" Unit "a memslot is deleted, and shadows of tables that lay in it stay",
    ArmForgetsShadows "arm-forgets-shadows" Unit "a dirty log begins or is harvested, and leaves of nested guests stay writable",

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
