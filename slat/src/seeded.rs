//! Mistakes made on purpose, to show that the tests find each of them.
//!
//! Every race in this crate is prevented by some step: a second look, a fence, a flush before a free. Each such step
//! has a name here, and the code beside it reads `seeded!(Name)`, which is the constant `false` outside tests. A test
//! that guards the step also runs the code without it, and must then fail. `cargo xtask nightly --only seeded-bugs`
//! runs all of them, and prints the tool and the executions of each.
//!
//! One mistake at a time: [`with`] makes it on this thread (loom and shuttle run all their threads on one), and the
//! variable `SLAT_SEEDED`, under `--cfg seeded`, in the whole process. The tests of `slat-slots` use the variable only.

use core::cell::Cell;
use std::process::Command;
use std::string::String;
use std::sync::OnceLock;
use std::vec::Vec;

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
    ListRelaxed "list-relaxed" Loom "the list of a region is read by a relaxed load",
    EndRelaxed "end-relaxed" Loom "an invalidation that ends takes itself off the lists by a relaxed exchange",
    StateRelaxed "state-relaxed" Loom "whether an invalidation is active is read by a relaxed load",
    ClearRelaxed "clear-relaxed" Loom "an invalidation that has ended says so by a relaxed store",
    TakenRelaxed "taken-relaxed" Loom "an invalidation hands its place on by a relaxed store",
    BeginRelaxed "begin-relaxed" Loom "an invalidation is announced by a relaxed exchange",
    RangesRelaxed "ranges-relaxed" Loom "the ranges of an active invalidation are read by relaxed loads",
    FirstRelaxed "first-relaxed" Loom "the first number of an active invalidation is read by a relaxed load",
    BeyondRelaxed "beyond-relaxed" Loom "whether invalidations are active beyond the first places is read by a relaxed load",
    BeyondLate "beyond-late" Loom "an invalidation beyond the first places is counted there after it has begun",
    BeyondEndRelaxed "beyond-end-relaxed" Loom "an invalidation beyond the first places is counted off there by a relaxed decrement",
    NewerHidden "newer-hidden" Loom "an invalidation that has taken something away does not look whether a newer one had passed it by",
    EpochKept "epoch-kept" Loom "a wide invalidation ends and leaves the epoch as it is",
    NumberedFirst "numbered-first" Loom "an invalidation takes its number before it is listed",
    NumberedRelaxed "numbered-relaxed" Loom "an invalidation takes its number by a relaxed increment",
    EndUnnumbered "end-unnumbered" Loom "a wide invalidation that ends takes no number first",
    BeginUnfenced "begin-unfenced" Loom "no fence between the announcement of an invalidation and its look at the entries",
    FreezeUnfenced "freeze-unfenced" Loom "no fence between a frozen entry and the stamp for what it is thawed to",
    PaidRelaxed "paid-relaxed" Loom "a flush is said to be paid by a relaxed store",
    OthersRelaxed "others-relaxed" Loom "whether another owes a flush is asked by a relaxed load of N",
    LinkRelaxed "link-relaxed" Loom "a filled table is linked by a relaxed exchange",
    FollowRelaxed "follow-relaxed" Loom "a link is followed that was read by a relaxed load",
    RootRelaxed "root-relaxed" Loom "a filled root is put in its place by a relaxed exchange",
    GenerationRelaxed "generation-relaxed" Loom "a flush is numbered by a relaxed increment",
    ShootdownUnfenced "shootdown-unfenced" Loom "no fence between a flush's number and the look at the vCPUs' modes",
    RmwUnfenced "rmw-unfenced" Loom "a relaxed exchange is taken for a full fence",
    FlushedRelaxed "flushed-relaxed" Loom "a vCPU answers a flush by a relaxed store",
    LeaveRelaxed "leave-relaxed" Loom "a vCPU leaves the guest by a relaxed store",
    AnswersRelaxed "answers-relaxed" Loom "answers to a flush are waited for by relaxed loads",
    KickRelaxed "kick-relaxed" Loom "a kick is cleared by a relaxed exchange",
    GoUnlooked "go-unlooked" Loom "the last step into the guest does not look for a kick",
    LookedBeforeHeld "looked-before-held" Loom "the last step into the guest looks for a kick, and then holds interrupts",
    InterruptedFirst "interrupted-first" Loom "a flusher interrupts a vCPU, and then says that it is kicked",
    RootUncounted "root-uncounted" Loom "a root is replaced, and flushes beside it are broadcast",
    RootCountRelaxed "root-count-relaxed" Loom "a root that all vCPUs have loaded is counted off by a relaxed decrement",
    WaitUnfenced "wait-unfenced" Loom "no fence between a vCPU's wait for a token and its second question to the host",
    ReadyUnfenced "ready-unfenced" Loom "no fence between a page that has come and the look at which vCPUs wait for its token",
    RangeWriteUnfenced "range-write-unfenced" Loom "no fence between the mark that a flush's range is being written and the range",
    RangeReadUnfenced "range-read-unfenced" Loom "no fence between a flush's range and the second look at its number",
    RangeRelaxed "range-relaxed" Loom "a flush's range is published by a relaxed store",
    HeavyUnfenced "heavy-unfenced" Loom "no fence between the unlinking and the look at the seats",
    SectionUnfenced "section-unfenced" Loom "no fence between the beginning of a section and its loads",
    NextSectionRelaxed "next-section-relaxed" Loom "a section begins by a relaxed store, which hides the end of the one before",
    SectionEndRelaxed "section-end-relaxed" Loom "a section ends by a relaxed store",
    CountedRelaxed "counted-relaxed" Loom "a page mapped under a lock is counted by a relaxed store, which hides the end of the section before",
    WaitRelaxed "wait-relaxed" Loom "the end of a section is waited for by relaxed loads",
    RestUnfenced "rest-unfenced" Loom "no fence between the unlinking and the look for seats at rest",
    RestRelaxed "rest-relaxed" Loom "rest begins by a relaxed exchange",
    AnswerRelaxed "answer-relaxed" Loom "a seat that is asked for rest answers by a relaxed exchange",
    SeatsRelaxed "seats-relaxed" Loom "more seats are linked by a relaxed exchange",
    SeatsUnlooked "seats-unlooked" Loom "a grace period looks at the first seats only",
    SeatRelaxed "seat-relaxed" Loom "a seat is given back by a relaxed store",
    MarkRelaxed "mark-relaxed" Loom "a page is marked dirty by a relaxed exchange",
    TakeRelaxed "take-relaxed" Loom "dirty marks are taken by a relaxed exchange",
    ChunkRelaxed "chunk-relaxed" Loom "a chunk of dirty marks is linked by a relaxed exchange",
    WholeUnfenced "whole-unfenced" Loom "no fence between a permission and the look at whether all pages are dirty",
    DivideUnfenced "divide-unfenced" Loom "no fence between the division of what is dirty as a whole and the look at the tables",
    KeepUnfenced "keep-unfenced" Loom "no fence between the D bits of tables and the marks",
    PublishRelaxed "publish-relaxed" Loom "a version of the slots is published by a relaxed store",
    NumberRelaxed "number-relaxed" Loom "the version of the slots is read by a relaxed load",
    RingRelaxed "ring-relaxed" Loom "an entry of a dirty ring is published by a relaxed store",
    RoomRelaxed "room-relaxed" Loom "room in a dirty ring is made by a relaxed store",
    HintReadUnfenced "hint-read-unfenced" Loom "no fence between what a hint says and the second look at its number",
    HintWriteUnfenced "hint-write-unfenced" Loom "no fence between the odd number of a hint and what is written into it",
    HoldUnfenced "hold-unfenced" Loom "no fence between the page that a hold publishes and its stamp",
    UsesRelaxed "uses-relaxed" Loom "the end of a use of a held frame is waited for by relaxed loads",
    UseEndRelaxed "use-end-relaxed" Loom "a use of a held frame ends by a relaxed store",
    HeldUnconfirmed "held-unconfirmed" Loom "a hold asks the host whatever the stamp says",
    HeldTakenMissed "held-taken-missed" Loom "a hold stores the host's answer, whatever was taken back while the host was asked",
    HeldKept "held-kept" Loom "an invalidation leaves a held frame as it is",
    HeldUnwaited "held-unwaited" Loom "an invalidation does not wait for the use of a frame that it takes back",
    HeldUnadopted "held-unadopted" Loom "an invalidation that finds a held frame taken back owes nothing",
    WatchedRelaxed "watched-relaxed" Loom "counts of watched frames are linked by a relaxed store",
    StoreUnfenced "store-unfenced" Loom "a store to L1's table is looked up among the tracked frames without a fence",
    HintRelaxed "hint-relaxed" Loom "a hint is finished by a relaxed store",

    // --- shuttle: steps of the whole engine ---
    StampUnconfirmed "stamp-unconfirmed" Shuttle "a fault does not scan the lists before it asks the host",
    LargeUnlooked "large-unlooked" Shuttle "a fault maps a large page of which it has looked at one small page",
    ConvertedUncovered "converted-uncovered" Shuttle "frames become private or shared when the invalidation of them has ended",
    StampLate "stamp-late" Shuttle "a fault takes its stamp when the host has answered",
    LostLinkBelieved "lost-link-believed" Shuttle "a fault that loses the race to link a table goes on in its own",
    FlushUnanswered "flush-unanswered" Shuttle "a shootdown does not wait until every vCPU has answered",
    FlushedTooEarly "flushed-too-early" Shuttle "an invalidation says that it has flushed, and then flushes",
    AdoptedNarrowly "adopted-narrowly" Shuttle "an adopter of a flush beyond its range stays on the lines of its regions",
    NotAdopted "not-adopted" Shuttle "a walk that meets a hole that has not been flushed yet leaves the flush to its invalidation",
    FrozenUnflushed "frozen-unflushed" Shuttle "an invalidation takes a frozen entry for one that no TLB holds",
    UpgradeUnstamped "upgrade-unstamped" Shuttle "an upgrade does not look whether an invalidation covers the page that it has frozen",
    GraceSkipped "grace-skipped" Shuttle "flushed tables are used again without a grace period",
    ShrinkUnwaited "shrink-unwaited" Shuttle "a chunk goes back to the host while its pages still wait for a grace period",
    TableRemembered "table-remembered" Shuttle "a vCPU goes on in the table that it remembers, whatever has been unhooked since",
    QuietBeside "quiet-beside" Shuttle "a vCPU takes the VM for quiet beside an active invalidation",
    QuietUndated "quiet-undated" Shuttle "a vCPU takes the VM for quiet though the epoch has moved since it has found its table",
    RootKept "root-kept" Shuttle "a vCPU that answers a flush keeps the root that it has",
    RecoveredBeside "recovered-beside" Shuttle "a recovery does not look whether an invalidation covers part of the large page",
    SlotChangedStampKept "slot-changed-stamp-kept" Shuttle "a vCPU that looks up another slot keeps the stamp that it confirmed for the one before",
    MmioUnlooked "mmio-unlooked" Shuttle "a hole that is newer than all that was looked at becomes a word for no memslot",
    SlotRemembered "slot-remembered" Shuttle "a vCPU believes the slot that it remembers, whatever has been published since",
    MarkedTooEarly "marked-too-early" Shuttle "a fault marks a page dirty, and then makes it writable",
    MarksBeforeTables "marks-before-tables" Shuttle "a harvest by D bits takes the marks, and then looks at the tables",
    HarvestBeforeGrace "first-harvest-early" Shuttle "a log that begins with all pages dirty is harvested while faults are under way that do not know of it",
    HarvestUnwaited "harvest-unwaited" Shuttle "a harvest by D bits does not wait for threads that have marked a leaf and are about to take it away",
    WatchUnasked "watch-unasked" Shuttle "a fault does not ask whether stores to the frame are tracked when it has its stamp",
    WatchForgotten "watch-forgotten" Shuttle "the short way of a fault maps frames whose stores are tracked",
    KeptTooLate "kept-too-late" Shuttle "a leaf goes, and then its D bit is marked",
    AgedByStore "aged-by-store" Shuttle "a pass clears Accessed bits by plain stores",

    // --- history: what is wrong for one instant, or owes too little ---
    SplitLinksFirst "split-links-first" History "a split links the table before it has filled it",
    SplitForgetsDirty "split-forgets-dirty" Unit "a split for a part that changes takes all small leaves for clean",
    SlotTakenForPlain "slot-taken-for-plain" Unit "the short way of a fault maps pages of a device's memslot as ordinary memory",
    TypeUpgraded "type-upgraded" Unit "a page that becomes writable gets another memory type in place, without a flush",
    LostSplitBelieved "lost-split-believed" History "an invalidation goes on as if it had split a leaf that another thread had changed",
    ReserveLeaked "reserve-leaked" Unit "table pages that an invalidation had at hand are not given back",
    SplitByStore "split-by-store" History "a split writes the link by a store: D, set meanwhile, is lost",
    RecoverUnfrozen "recover-unfrozen" History "a recovery asks the host without freezing the link first",
    RecoverFlushesNothing "recover-flushes-nothing" History "a recovery does not flush what the small pages were",
    ReplaceThroughHole "replace-through-hole" History "a leaf is zapped before what replaces it is written",
    UpperHoleUnnumbered "upper-hole-unnumbered" History "an invalidation numbers no holes where tables are missing",
    LargeNotWidened "large-not-widened" History "a large leaf is zapped beyond what the invalidation has published",
    UnhookOwesNothing "unhook-owes-nothing" History "a table is unhooked without a flush of the links to it",
    ProtectOwesNothing "protect-owes-nothing" History "write permission is taken without a flush",
    HarvestFlushesShort "harvest-flushes-short" History "the flush of a harvest leaves out its last 64 pages",
    LinkForgetsNumber "link-forgets-number" History "a new table does not inherit the number of its hole",
    SlotPublishedFirst "slot-published-first" History "a slot is gone for notifiers before its pages are",
    LeakedUnpaid "leaked-unpaid" History "an invalidation whose debt was leaked ends without its flush",

    // --- fuzz: ranges and counts ---
    PartRoundedDown "part-rounded-down" Fuzz "a host range that ends inside a page leaves that page mapped",
    RowPastEnd "row-past-end" Fuzz "a row of entries is edited to the end of its table, not of the range",
    WholeByStart "whole-by-start" Fuzz "a large leaf that begins in a range counts as covered by it",
    FlushShort "flush-short" Fuzz "the flush for a row of entries is one page short",
    MarkAcross "mark-across" Fuzz "pages are marked 64 at a time from the first on, across the ends of words",
    OverlapBelow "overlap-below" Fuzz "a new slot is compared with the one that begins below it, not with one that begins inside",
    TrackedUncounted "tracked-uncounted" Fuzz "a leaf that goes while it is withdrawn is not counted off",
    Incongruent "incongruent" Fuzz "a large page is mapped where guest and host addresses are not congruent",
    CarryLost "carry-lost" Fuzz "dirty bits of a table that begins inside a word are cut at its end",

    // --- worlds: what guests stored ---
    EnterUnflushed "enter-unflushed" Worlds "a vCPU enters the guest without the flushes that were asked for while it was out",
    LeafUnmarked "leaf-unmarked" Worlds "a leaf that is taken away takes its D bit along",
    TableUnemptied "table-unemptied" Worlds "a table is unhooked with the D bits that are in it",
    RegainUnmarked "regain-unmarked" Worlds "the write permission is given back, and the page is not marked",
    RingUnarmed "ring-unarmed" Worlds "the pages of a ring are harvested, and not armed",
    GivenBackLost "given-back-lost" Worlds "a harvest that is dropped does not give its bits back",

    // --- shared: what guests read on processors that they share ---
    ProcessorBelieved "processor-believed" Shared "a vCPU that comes back to a processor believes what it left there",

    // --- slat-mm's own tests ---
    FullBelieved "full-believed" Host "swap space that was full once is not asked for room again",
    NoFrameIsFull "no-frame-is-full" Host "swap space counts as full where only the arena has no frame",
    PoolChargedToAll "pool-charged-to-all" Host "each address space is charged for the whole pool of copies",
    BooksHeld "books-held" Host "the books of swap are locked while a device writes",
    OneAtATime "one-at-a-time" Host "the writes of a batch are asked for one after the other",
    NeverProbed "never-probed" Host "a device that failed once is not asked again while another has room",
    GroupsTogether "groups-together" Host "what other groups use counts towards a group's limit",
    StoredUnderLock "stored-under-lock" Host "the lock of the mappings is held while a page goes to the swap device",
    VersionNotOutlasted "version-not-outlasted" Host "a change of the mappings edits entries beside faults that go by the version before",
    MappingBeforeLock "mapping-before-lock" Host "a fault looks up the mapping before it takes the page lock",
    RangeNotKept "range-not-kept" Host "others map a range while munmap empties its entries",
    ForkUnshown "fork-unshown" Host "faults go on while a fork copies private mappings",
    MoveShownEarly "move-shown-early" Host "faults find the new mapping of a range while its pages are on their way",
    ShareUnlooked "share-unlooked" Host "a share is broken without a look at what is mapped there by now",
    MergeUnlooked "merge-unlooked" Host "a page is merged without a look at what its mapping wants by now",
    TrimmedUnlocked "trimmed-unlocked" Host "free frames go back to the system without the lock under which they are taken",
    ZeroedHidden "zeroed-hidden" Host "frames that were zeroed ahead are found by no thread that needs one for something else",
    ZeroedLate "zeroed-late" Host "frames are offered as zeroed ahead, and zeroed then",
    ZoneAlone "zone-alone" Host "a thread whose zone has no free frame looks into no other zone of its node",
    ShareUncounted "share-uncounted" Host "a second entry that goes to the copy of a page that forks share takes no reference to it",
    ShareOverwritten "share-overwritten" Host "a page that is in the swap cache is written in place",
    CacheUncounted "cache-uncounted" Host "the swap cache takes no reference to a frame, and gives one back",
    KinForgotten "kin-forgotten" Host "entries of forks are left out where a page that they share is evicted",
    LeavingTwice "leaving-twice" Host "two threads take the same page to swap at once",
    UnmappedUnsaid "unmapped-unsaid" Host "frames that only the swap cache has are found by no thread that needs room",

    // --- load: a guest, devices, swap and merging on slat-mm ---
    RefaultUncharged "refault-uncharged" Host "a page that comes back from swap is charged to no group",
    FailureBelieved "failure-believed" Host "a page that a swap device failed to store counts as stored",
    ZeroedInName "zeroed-in-name" Host "free frames are offered as zeroed ahead, and hold what they held",
    EvictorAlone "evictor-alone" Load "an evictor goes by the limit of its address space, and not by its group's",

    // --- unit tests ---
    CellReusedEarly "cell-reused-early" Unit "the seventeenth version of the slots overwrites the first under its readers",
    KicksCutShort "kicks-cut-short" Unit "vCPUs after one whose kick panics are not kicked, and none is waited for",
    CopiedUnsettled "copied-unsettled" Unit "a page is copied before the flush that a change before it owes",
    SeatsFixed "seats-fixed" Unit "a thread waits for a seat where all are taken, and makes no more",
    PlaceNotKept "place-not-kept" Unit "an event that may not block takes another place of the active set when a page is told",
    SeatNotKept "seat-not-kept" Unit "an event that may not block gives its seat back before its pages are told",
    MarkedAtOnce "marked-at-once" Unit "all pages of a range are marked dirty in one section",
    GivenBackAtOnce "given-back-at-once" Unit "all pages of a harvest are given back in one section",

    PendingBelieved "pending-believed" Unit "a vCPU waits for a token, and does not ask the host once more",
    RestLost "rest-lost" Unit "frames that a population could not map are not handed back to the caller",
    ReadyForgotten "ready-forgotten" Unit "an entry into the guest takes a ready token for a kick that it has answered",
    EventForgotten "event-forgotten" Unit "the short way of a fault maps a page and tells no observer",
    LeakedGuardBelieved "leaked-guard-believed" Unit "a vCPU whose guard was leaked begins a section on a seat that looks at rest",
    CachesBelieved "caches-believed" Unit "a vCPU enters on another processor, or under a number taken again, and believes what is cached there",
    LoadedKept "loaded-kept" Unit "where the caches of another processor cannot be flushed, those of the last one are believed still",
    LinkTaken "link-taken" Unit "a map takes a word that links a table, and follows it",
    ChunkNotWhole "chunk-not-whole" Unit "a chunk goes back to the host with one page of it in use",
    SpareLost "spare-lost" Unit "table pages that a map could not use are not given back",
    ToldFirstFrame "told-first-frame" Unit "every small leaf of a large page that is told gets its first frame",
    ResetUncollected "reset-uncollected" Unit "a reset of dirty rings takes what was pushed since the rings were read",
    DetachedEnded "detached-ended" Unit "an invalidation ends when it is detached from its VM",
    CutUnzapped "cut-unzapped" Unit "frames cut out of a memslot are not reported, and stay mapped",
    CutClean "cut-clean" Unit "what is left of a memslot that logs counts as clean",
    CutShared "cut-shared" Unit "frames that are private are shared where the memslot around them is cut",
    ConfirmedLate "confirmed-late" Unit "the embedder's operation in a transaction is asked for when the lost frames are zapped already",
    SnapshotUnasked "snapshot-unasked" Unit "nodes of an old version of the slots are used again though a snapshot of it is held",
    AgreedOnce "agreed-once" Unit "a fault compares the memory that the guest means with the frame's before its first attempt alone",
    WatchUnprotected "watch-unprotected" Unit "tracking of stores begins, and pages that vCPUs have writable stay so",
    HeldUnflushed "held-unflushed" Unit "a frame that hardware uses is taken back, and a flush is owed only for its leaf",
    HeldBroadcast "held-broadcast" Unit "the flush of a held frame is broadcast, and hardware keeps the frame",
    HeldUnmarked "held-unmarked" Unit "a held frame that the VMM has written is not marked",
    HeldTracked "held-tracked" Unit "a frame whose stores are tracked is held to write",
    EmulatedUnmarked "emulated-unmarked" Unit "a store that the VMM makes for the guest is not marked",
    LeafUncompared "leaf-uncompared" Unit "an upgrade takes a leaf that reaches out of the slot for the slot's",
    UpperRightsIgnored "upper-rights-ignored" Unit "a walk of L1's table takes the leaf's rights for those of the whole path",
    MisconfigurationLate "misconfiguration-late" Unit "a walk of L1's table refuses for rights before it has read the entries below",
    DirtyUnset "dirty-unset" Unit "a store that is walked through L1's table leaves D clear in the leaf",
    CleanWritable "clean-writable" Unit "a shadow of L1's leaf may allow stores while D is clear there",
    TableUnlogged "table-unlogged" Unit "A and D are set in L1's table, and its page is not marked dirty",
    TableUntold "table-untold" Unit "A and D are set in L1's table, and listeners of its stores are not told",
    NeighbourOverwritten "neighbour-overwritten" Unit "A and D are set in an entry of four bytes, and the four beside it are lost",
    UsersRightsForAll "users-rights-for-all" Unit "a supervisor's access of the guest's memory is allowed what a user's is",
    RefusedForOne "refused-for-one" Unit "a page fault of the guest's leaves what accesses at another privilege have of the address",
    FramesLineUnmoved "frames-line-unmoved" Unit "INVLPG does not say to faults under way, and to those that take the short way, that it begins",
    FramesUnforgotten "frames-unforgotten" Unit "INVLPG takes leaves from shadows, and nothing from the vCPU's own TLB",
    OnePageAlone "one-page-alone" Unit "a page of the guest's is mapped in parts, and INVLPG takes the one around its address",
    OneTableAlone "one-table-alone" Unit "INVLPG takes a page from the table that the vCPU runs on alone",
    PcidIgnored "pcid-ignored" Unit "what a guest has under one PCID serves it under another one",
    ShadowsForgotten "shadows-forgotten" Unit "an invalidation does not look for what was made of its frames for a nested guest",
    HintAfterLeaf "hint-after-leaf" Unit "a fault of L2 maps its page, and then enters the hint in the reverse map",
    HintUnfenced "hint-unfenced" Loom "no fence between a hint in the reverse map and the look at what is announced",
    SlowerKept "slower-kept" Unit "of two vCPUs that begin the first nested guest at once, the slower one keeps its tables",
    PlanesLost "planes-lost" Unit "tables that were made before memory ran out do not go back",
    FlagAfterValue "flag-after-value" Loom "a vCPU finds the shadows before the VM says that it has any",
    HintUnchecked "hint-unchecked" Unit "a fault of L2 does not look at what is announced after it has entered its hint",
    TablesReadFirst "tables-read-first" Unit "a fault of L2 reads L1's table, and then the entry that it fills",
    L1TagOnly "l1-tag-only" Unit "an invalidation that reached a nested guest flushes L1's translations alone",
    RefusedLeafKept "refused-leaf-kept" Unit "an access that L1's table refuses leaves what it hit",
    RefusedOnce "refused-once" Unit "what L1's table refused goes at once, and not again when the vCPU comes back to L2",
    FirstEntryUnflushed "first-entry-unflushed" Unit "a vCPU enters L2 on a shadow where it has never been, and no flush of it comes first",
    FlushBelieved "flush-believed" Unit "a flush of L1 is served by one that began before L1 asked for it",
    BroadcastDeferred "broadcast-deferred" Unit "a flush of L1 for all vCPUs empties the shadow, and flushes no TLB",
    BroadcastUnwaited "broadcast-unwaited" Unit "a flush of L1 for all vCPUs returns while a fault still walks L1's table",
    RecycledUnflushed "recycled-unflushed" Unit "a shadow goes to another table of L1, and vCPUs take it for the one that they know",
    SlotMovedUnderTables "slot-moved-under-tables" Unit "a memslot goes, and shadows of tables that lay in it stay",
    ArmForgetsShadows "arm-forgets-shadows" Unit "a log of writes is begun or taken, and leaves of nested guests stay writable",
    WriteUnmarked "write-unmarked" Unit "a store of L2 is let through, and the page of L1 is not marked",
    LineUnchecked "line-unchecked" Unit "a fault of L2 that has frozen its entry does not look whether L1 has flushed meanwhile",
    QuickUnchecked "quick-unchecked" Unit "a fault of L2 that takes the short way does not look at what is announced",
    LineUnmoved "line-unmoved" Unit "a flush of L1 does not say to faults under way that it begins",
    CheckedBeforeFrozen "checked-before-frozen" Loom "a fault of L2 looks at what is announced, and then freezes its entry",
    SplinterUntold "splinter-untold" Loom "a fault maps a part of a page of the guest's, and then says that there are parts",
    FrozenPassedBy "frozen-passed-by" Loom "a flush of L1 leaves a frozen entry to its fault",
    FrozenTaken "frozen-taken" Loom "an entry that a fault of L2 has frozen becomes a hole, and two faults write its row",
    RowAfterLeaf "row-after-leaf" Loom "the row is written when the leaf is there",
    RowIgnored "row-ignored" Unit "a flush of L1 keeps a leaf whose frame L1's table does not name any more",
    KeptUnaccessed "kept-unaccessed" Unit "a flush of L1 keeps a leaf whose A L1 has cleared",
    KeptWritable "kept-writable" Unit "a flush of L1 keeps a leaf that allows stores, and whose D L1 has cleared",
    DoorRelaxed "door-relaxed" Loom "a walk enters a shadow whose tables were unlinked by a relaxed exchange",
    WalksUnawaited "walks-unawaited" Loom "tables of a shadow are freed while a walk is in them",
    UnlinkUnnoted "unlink-unnoted" Loom "tables of a shadow are unlinked, and that is not put down as a drop",
    FreedBesideFault "freed-beside-fault" Unit "tables of a shadow are freed while a fault is in them",
    ReclaimUnannounced "reclaim-unannounced" Unit "tables of a shadow are unlinked, and its line does not move",
    LineReadLate "line-read-late" Unit "a fault of L2 walks to the table that it will remember, and then reads the shadow's line",
    NearUnchecked "near-unchecked" Unit "a fault of L2 goes by the table that it remembers, and does not look at the line first",
    DropNotedLate "drop-noted-late" Loom "what is taken from a leaf of a shadow is put down when it is gone",
    DropNotedEarly "drop-noted-early" Loom "what is taken from a leaf of a shadow is put down before it is gone, not after",
    ServedUnforgotten "served-unforgotten" Unit "a flush of L1 that another vCPU's has served leaves the vCPU's own TLB as it is",
    HintGoesWithPart "hint-goes-with-part" Unit "a part of a large page of L1 changes, and the hint of the page goes, which leads to its other parts",
    PartByStart "part-by-start" Unit "a part of a large page of L1 changes, and what was made of its beginning goes",
    SplitRowAlike "split-row-alike" Unit "all parts of a leaf that is split are put down as of the first part's frame of L1",
    SplitUntold "split-untold" Unit "a page of the guest's is split in its shadow, and INVLPG takes the part around its address",
    SplitPartAlone "split-part-alone" Unit "L1 flushes an address in a page that it has made a table, and other parts of the page stay",
    LargeHintsMissed "large-hints-missed" Unit "an invalidation does not look for what was made of its frames by 2 MiB",
    AgingForgetsShadows "aging-forgets-shadows" Unit "an aging pass looks at L1's own mappings alone",
    WithdrawnServes "withdrawn-serves" Unit "a fault of L2 leaves a leaf that an aging pass has withdrawn",
    LevelOfTAlone "level-of-t-alone" Unit "a leaf of a shadow is as large as L1's table says, whatever the host has",
    LevelOfHostAlone "level-of-host-alone" Unit "a leaf of a shadow is as large as the host's page, whatever L1's table says",
    WideUnchecked "wide-unchecked" Unit "a fault of L2 maps 1 GiB, and looks at what was announced of one region of it",
    WholeBelieved "whole-believed" Unit "a flush of L1 keeps a leaf of which L1's table names the first part alone by an entry",
    ChangeUnseen "change-unseen" Unit "an entry of L1's table that changed while A was to be set is taken for what it was",

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

/// Runs `work` on this thread with the mistake made, until `work` ends in whatever way.
pub fn with<R>(bug: Bug, work: impl FnOnce() -> R) -> R {
    struct Undo(Option<Bug>);
    impl Drop for Undo {
        fn drop(&mut self) {
            MADE.set(self.0);
        }
    }
    let _undo = Undo(MADE.replace(Some(bug)));
    work()
}

/// What a test says of the first of its worlds that is wrong; the world's number and a full stop follow.
pub const WRONG: &str = "wrong in world ";

/// Makes each mistake of `tool` in a process of its own: this very program, asked for the one test that `guard` names, which
/// must fail. A test of several worlds must say [`WRONG`] of one.
///
/// # Panics
/// Where a test passes all the same.
pub fn each_fails_in_a_process(tool: Tool, guard: impl Fn(Bug) -> &'static str, of_worlds: bool) {
    let fails = |bug: Bug| {
        let mut test = Command::new(std::env::current_exe().expect("this program"));
        let child = test.args(["--exact", "--nocapture", guard(bug)]).env("SLAT_SEEDED", bug.name()).output();
        let child = child.expect("it starts");
        let said = String::from_utf8_lossy(&child.stderr);
        let world = said.split(WRONG).nth(1).and_then(|rest| rest.split('.').next()?.parse().ok());
        let world = if of_worlds { world } else { said.contains("panicked at").then_some(1) };
        world.filter(|_| !child.status.success()).map(|world| found(bug, world)).is_some()
    };
    let missed: Vec<Bug> =
        Bug::ALL.iter().copied().filter(|&bug| bug.tool() == tool && !fails(bug)).collect();
    assert!(missed.is_empty(), "nothing wrong was seen with {missed:?}");
}

/// Says that `bug` was found, in the words that `cargo xtask verify` reads; the last of `executions` showed it.
pub fn found(bug: Bug, executions: u64) {
    std::println!("SEEDED {} {:?} {executions}", bug.name(), bug.tool());
}

#[cfg(test)]
mod tests {
    use super::*;

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
        with(bug, || assert!(is(bug) && !is(Bug::ALL[1])));
        assert!(!is(bug));
    }
}
