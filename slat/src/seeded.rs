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
    FreezeUnfenced "freeze-unfenced" Loom "no fence between the freeze of an entry and the stamp of the new leaf",
    PaidRelaxed "paid-relaxed" Loom "a debt is marked as paid by a relaxed store",
    OthersRelaxed "others-relaxed" Loom "a relaxed load of N asks whether another invalidation owes a flush",
    LinkRelaxed "link-relaxed" Loom "a filled table is linked by a relaxed exchange",
    FollowRelaxed "follow-relaxed" Loom "a walk follows a link that it read by a relaxed load",
    RootRelaxed "root-relaxed" Loom "a filled root is put in its place by a relaxed exchange",
    GenerationRelaxed "generation-relaxed" Loom "a flush is numbered by a relaxed increment",
    ShootdownUnfenced "shootdown-unfenced" Loom "no fence between a flush's number and the check of the vCPUs' modes",
    RmwUnfenced "rmw-unfenced" Loom "a relaxed exchange is taken for a full fence",
    FlushedRelaxed "flushed-relaxed" Loom "a vCPU answers a flush by a relaxed store",
    LeaveRelaxed "leave-relaxed" Loom "a vCPU leaves the guest by a relaxed store",
    AnswersRelaxed "answers-relaxed" Loom "a flusher waits for answers by relaxed loads",
    KickRelaxed "kick-relaxed" Loom "a kick is cleared by a relaxed exchange",
    GoUnlooked "go-unlooked" Loom "the last step into the guest does not check for a kick",
    LookedBeforeHeld "looked-before-held" Loom "the last step into the guest checks for a kick before it holds interrupts",
    InterruptedFirst "interrupted-first" Loom "a flusher interrupts a vCPU before it sets the vCPU's kick flag",
    RootUncounted "root-uncounted" Loom "a flush beside the replacement of a root is broadcast",
    RootCountRelaxed "root-count-relaxed" Loom "the count of roots being replaced is decremented by a relaxed operation",
    WaitUnfenced "wait-unfenced" Loom "no fence between a vCPU's wait for a token and its second question to the host",
    ReadyUnfenced "ready-unfenced" Loom "no fence between the arrival of a page and the check for vCPUs that wait for its token",
    RangeWriteUnfenced "range-write-unfenced" Loom "no fence between the mark that a flush's range is being written and the range",
    RangeReadUnfenced "range-read-unfenced" Loom "no fence between a flush's range and the second read of its number",
    RangeRelaxed "range-relaxed" Loom "a flush's range is published by a relaxed store",
    HeavyUnfenced "heavy-unfenced" Loom "no fence between the unlinking and the check of the seats",
    SectionUnfenced "section-unfenced" Loom "no fence between the beginning of a section and its loads",
    NextSectionRelaxed "next-section-relaxed" Loom "a section begins by a relaxed store, which hides the end of the one before",
    SectionEndRelaxed "section-end-relaxed" Loom "a section ends by a relaxed store",
    CountedRelaxed "counted-relaxed" Loom "a page mapped under a lock is counted by a relaxed store, which hides the end of the section before",
    WaitRelaxed "wait-relaxed" Loom "a writer waits for the end of a section by relaxed loads",
    RestUnfenced "rest-unfenced" Loom "no fence between the unlinking and the check of the seats at rest",
    RestRelaxed "rest-relaxed" Loom "a seat comes to rest by a relaxed exchange",
    AnswerRelaxed "answer-relaxed" Loom "a reader answers an asked seat by a relaxed exchange",
    SeatsRelaxed "seats-relaxed" Loom "more seats are linked by a relaxed exchange",
    SeatsUnlooked "seats-unlooked" Loom "a grace period checks only the first seats",
    SeatRelaxed "seat-relaxed" Loom "a seat is given back by a relaxed store",
    MarkRelaxed "mark-relaxed" Loom "a page is marked dirty by a relaxed exchange",
    TakeRelaxed "take-relaxed" Loom "dirty marks are taken by a relaxed exchange",
    ChunkRelaxed "chunk-relaxed" Loom "a chunk of dirty marks is linked by a relaxed exchange",
    WholeUnfenced "whole-unfenced" Loom "no fence between a write permission and the check whether all pages are dirty",
    DivideUnfenced "divide-unfenced" Loom "no fence between the split of an all-dirty log into pages and the reads of the tables",
    KeepUnfenced "keep-unfenced" Loom "no fence between the D bits of tables and the marks",
    PublishRelaxed "publish-relaxed" Loom "a version of the slots is published by a relaxed store",
    NumberRelaxed "number-relaxed" Loom "the version of the slots is read by a relaxed load",
    RingRelaxed "ring-relaxed" Loom "an entry of a dirty ring is published by a relaxed store",
    RoomRelaxed "room-relaxed" Loom "room in a dirty ring is made by a relaxed store",
    HoldUnfenced "hold-unfenced" Loom "no fence between the page that a hold publishes and its stamp",
    UsesRelaxed "uses-relaxed" Loom "an invalidation waits for the end of a use of a held frame by relaxed loads",
    UseEndRelaxed "use-end-relaxed" Loom "a use of a held frame ends by a relaxed store",
    HeldUnconfirmed "held-unconfirmed" Loom "a hold asks the host although the stamp found an active invalidation",
    HeldTakenMissed "held-taken-missed" Loom "a hold stores the host's answer although an invalidation took the page back in between",
    HeldKept "held-kept" Loom "an invalidation does not take a held frame back",
    HeldUnwaited "held-unwaited" Loom "an invalidation does not wait for the use of a frame that it takes back",
    HeldUnadopted "held-unadopted" Loom "an invalidation that finds a held frame taken back owes nothing",
    WatchedRelaxed "watched-relaxed" Loom "counts of watched frames are linked by a relaxed store",
    StoreUnfenced "store-unfenced" Loom "a store to L1's table is looked up among the tracked frames without a fence",

    // --- shuttle: steps of the whole engine ---
    StampUnconfirmed "stamp-unconfirmed" Shuttle "a fault does not check for active invalidations before it asks the host",
    LargeUnlooked "large-unlooked" Shuttle "a fault maps a large page after it has checked one small page of it",
    ConvertedUncovered "converted-uncovered" Shuttle "frames become private or shared after their invalidation has ended",
    StampLate "stamp-late" Shuttle "a fault takes its stamp after the host has answered",
    LostLinkBelieved "lost-link-believed" Shuttle "a fault that loses the race to link a table continues in its own table",
    DescentEndsAtLink "descent-ends-at-link" Shuttle "a descent that links tables ends at a link that another thread has made",
    FlushUnanswered "flush-unanswered" Shuttle "a shootdown does not wait until every vCPU has answered",
    FlushedTooEarly "flushed-too-early" Shuttle "an invalidation says that it has flushed before it flushes",
    AdoptedNarrowly "adopted-narrowly" Shuttle "an invalidation that adopts a debt beyond its range stays listed only on the lines of its own regions",
    NotAdopted "not-adopted" Shuttle "a walk that meets an unflushed hole does not adopt the debt",
    FrozenUnflushed "frozen-unflushed" Shuttle "an invalidation takes a frozen entry for one that no TLB holds",
    UpgradeUnstamped "upgrade-unstamped" Shuttle "an upgrade does not check whether an invalidation covers the page that it has frozen",
    GraceSkipped "grace-skipped" Shuttle "flushed tables are used again without a grace period",
    ShrinkUnwaited "shrink-unwaited" Shuttle "a chunk goes back to the host while its pages still wait for a grace period",
    TableRemembered "table-remembered" Shuttle "a vCPU uses the table that it remembers although it has been unhooked",
    QuietBeside "quiet-beside" Shuttle "a vCPU treats the VM as quiet beside an active invalidation",
    QuietUndated "quiet-undated" Shuttle "a vCPU treats the VM as quiet although the epoch has moved since it found its table",
    RootKept "root-kept" Shuttle "a vCPU that answers a flush does not load the new root",
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
    AgedByStore "aged-by-store" Shuttle "a pass clears Accessed bits by plain stores",

    // --- history: what is wrong for one instant, or owes too little ---
    FollowedOnce "followed-once" History "an invalidation that repeats its range, and removed a mapping again, does not look again",
    WidenedNarrowly "widened-narrowly" History "an invalidation that zaps beyond its range stays narrow",
    SplitLinksFirst "split-links-first" History "a split links the table before it has filled it",
    SplitForgetsDirty "split-forgets-dirty" Unit "a split for a part that changes makes all small leaves clean",
    SlotTakenForPlain "slot-taken-for-plain" Unit "the short path of a fault maps pages of a device's memslot as ordinary memory",
    TypeUpgraded "type-upgraded" Unit "a page that becomes writable gets another memory type in place, without a flush",
    LostSplitBelieved "lost-split-believed" History "an invalidation that loses the race to split a leaf continues as if it had won",
    ReserveLeaked "reserve-leaked" Unit "table pages that an invalidation reserved are not given back",
    SplitByStore "split-by-store" History "a split writes the link by a store: D, set meanwhile, is lost",
    RecoverUnfrozen "recover-unfrozen" History "a recovery asks the host without freezing the link first",
    RecoverFlushesNothing "recover-flushes-nothing" History "a recovery does not flush the translations of the small pages",
    ReplaceThroughHole "replace-through-hole" History "a leaf is zapped before its replacement is written",
    UpperHoleUnnumbered "upper-hole-unnumbered" History "an invalidation numbers no holes above missing tables",
    LargeNotWidened "large-not-widened" History "a large leaf is zapped beyond what the invalidation has published",
    UnhookOwesNothing "unhook-owes-nothing" History "a table is unhooked without a flush of the links to it",
    ProtectOwesNothing "protect-owes-nothing" History "write permission is taken without a flush",
    HarvestFlushesShort "harvest-flushes-short" History "the flush of a harvest leaves out its last 64 pages",
    LinkForgetsNumber "link-forgets-number" History "a new table does not inherit the number of its hole",
    SlotPublishedFirst "slot-published-first" History "a slot is gone for notifiers before its pages are zapped",
    LeakedUnpaid "leaked-unpaid" History "an invalidation whose debt was leaked ends without its flush",
    // --- fuzz: ranges and counts ---
    // --- worlds: what guests stored ---
    EnterUnflushed "enter-unflushed" Worlds "a vCPU enters the guest without the flushes that were requested while it was out",
    LeafUnmarked "leaf-unmarked" Worlds "a leaf is zapped and its D bit is lost",
    TableUnemptied "table-unemptied" Worlds "a table is unhooked and the D bits in it are lost",
    AnswerOutlived "answer-outlived" Unit "a leaf is upgraded to what the host said before an invalidation that has ended since",
    AnswerOfPart "answer-of-part" Unit "a large leaf is upgraded by an answer about a part of it, beside an invalidation of another part",
    FrameUnchecked "frame-unchecked" Unit "a frame of the host that the format cannot hold, or that does not fit the page's size, is mapped",
    MarkLookedUpLate "mark-looked-up-late" Unit "a page is marked in the log that its frame has after the store was allowed",
    RegainUnmarked "regain-unmarked" Worlds "write permission is restored, and the page is not marked",
    RingUnarmed "ring-unarmed" Worlds "the pages of a ring are reported, and not armed again",
    GivenBackLost "given-back-lost" Worlds "a harvest that is dropped does not give its bits back",

    // --- shared: what guests read on processors that they share ---
    ProcessorBelieved "processor-believed" Shared "a vCPU that comes back to a processor uses the translations that it left there",

    // --- miri ---

    // --- callbacks that panic ---
    AskedOnce "asked-once" Inject "a flush that L1 asked for is forgotten when the host panics in it",
    UnansweredForgotten "unanswered-forgotten" Inject "a vCPU whose cache panics in an answer stays in the guest without a kick",

    // --- unit tests ---
    IdleInSection "idle-in-section" Unit "a thread takes its token inside a section of a call that has not got it",
    CellReusedEarly "cell-reused-early" Unit "the seventeenth version of the slots overwrites the first one while readers use it",
    KicksCutShort "kicks-cut-short" Unit "if one kick panics, the remaining vCPUs are not kicked, and the flusher waits for none",
    CopiedUnsettled "copied-unsettled" Unit "a page is copied before the flush that an earlier change owes",
    SeatsFixed "seats-fixed" Unit "a thread waits when all seats are taken, and adds no seats",
    PlaceNotKept "place-not-kept" Unit "an event that may not block takes another place of the active set when a page is reported",
    SeatNotKept "seat-not-kept" Unit "an event that may not block gives its seat back before its pages are reported",
    MarkedAtOnce "marked-at-once" Unit "all pages of a range are marked dirty in one section",
    GivenBackAtOnce "given-back-at-once" Unit "all pages of a harvest are given back in one section",

    PendingBelieved "pending-believed" Unit "a vCPU that waits for a token does not ask the host once more",
    RestLost "rest-lost" Unit "frames that a population could not map are not handed back to the caller",
    ReadyForgotten "ready-forgotten" Unit "an entry into the guest clears the kick of a ready token as an answered flush",
    EventForgotten "event-forgotten" Unit "the short path of a fault maps a page and calls no observer",
    LeakedGuardBelieved "leaked-guard-believed" Unit "a vCPU whose guard was leaked begins a section on a seat that is marked at rest",
    CachesBelieved "caches-believed" Unit "a vCPU that enters on another processor, or under a reused number, uses the translations that are cached there",
    LoadedKept "loaded-kept" Unit "if the flush of another processor's caches fails, the vCPU still trusts those of the last processor",
    LinkTaken "link-taken" Unit "a map takes a word that links a table, and follows it",
    ChunkNotWhole "chunk-not-whole" Unit "a chunk goes back to the host with one page of it in use",
    SpareLost "spare-lost" Unit "table pages that a map could not use are not given back",
    ToldFirstFrame "told-first-frame" Unit "every small leaf of a reported large page gets the first frame",
    ResetUncollected "reset-uncollected" Unit "a reset of dirty rings drops entries that were pushed after the rings were read",
    DetachedEnded "detached-ended" Unit "an invalidation ends when it is detached from its VM",
    ConfirmedLate "confirmed-late" Unit "a transaction calls the embedder's operation after it has zapped the lost frames",
    AgreedOnce "agreed-once" Unit "a fault compares the kind of memory that the guest names with the frame's only before its first attempt",
    WatchUnprotected "watch-unprotected" Unit "write tracking begins, and pages that vCPUs have mapped writable stay writable",
    HeldUnflushed "held-unflushed" Unit "taking back a frame that hardware uses owes a flush only if a leaf maps it",
    HeldBroadcast "held-broadcast" Unit "the flush of a held frame is broadcast, and hardware keeps the frame",
    HeldUnmarked "held-unmarked" Unit "a held frame that the VMM has written is not marked",
    HeldTracked "held-tracked" Unit "a frame whose stores are tracked is held to write",
    EmulatedUnmarked "emulated-unmarked" Unit "a store that the VMM makes for the guest is not marked",
    LeafUncompared "leaf-uncompared" Unit "an upgrade accepts a leaf that reaches out of the slot",
    UpperRightsIgnored "upper-rights-ignored" Unit "a walk of L1's table uses the leaf's rights as those of the whole path",
    MisconfigurationLate "misconfiguration-late" Unit "a walk of L1's table refuses for rights before it has read the entries below",
    DirtyUnset "dirty-unset" Unit "the walk for a store leaves D clear in the leaf of L1's table",
    CleanWritable "clean-writable" Unit "a shadow of L1's leaf may allow stores while D is clear there",
    TableUnlogged "table-unlogged" Unit "A and D are set in L1's table, and its page is not marked dirty",
    TableUntold "table-untold" Unit "A and D are set in L1's table, and listeners of its stores are not called",
    NeighbourOverwritten "neighbour-overwritten" Unit "A and D are set in an entry of four bytes, and the four beside it are lost",
    UsersRightsForAll "users-rights-for-all" Unit "a supervisor's access gets the rights of a user's",
    RefusedForOne "refused-for-one" Unit "a page fault of the guest leaves the address's translations of other privileges",
    FramesLineUnmoved "frames-line-unmoved" Unit "INVLPG begins without announcing itself to faults under way, and to faults on the short path",
    FramesUnforgotten "frames-unforgotten" Unit "INVLPG removes leaves of shadows, and does not flush the vCPU's own TLB",
    OnePageAlone "one-page-alone" Unit "a page of the guest is mapped in parts, and INVLPG removes only the part at its address",
    OneTableAlone "one-table-alone" Unit "INVLPG removes a page only from the table that the vCPU runs on",
    PcidIgnored "pcid-ignored" Unit "translations of one PCID serve the guest under another one",
    ShadowsForgotten "shadows-forgotten" Unit "an invalidation does not look for leaves of nested guests that map its frames",
    HintAfterLeaf "hint-after-leaf" Unit "a fault of L2 maps its page before it enters the hint in the reverse map",
    HintUnfenced "hint-unfenced" Loom "no fence between a hint in the reverse map and the check of the announced numbers",
    HintUnlooked "hint-unlooked" Loom "a fault of L2 that has frozen its entry does not check whether another fault has replaced its hint",
    DoubtUnfenced "doubt-unfenced" Loom "no fence between the doubt of a hint and the second look at its entry",
    StaleUndoubted "stale-undoubted" Loom "a hint whose leaf is gone is replaced at once, without a doubt and a second look",
    DoubtedByTwo "doubted-by-two" Loom "two threads doubt hints of one page at a time",
    ShadowsAtOnce "shadows-at-once" Unit "all leaves of nested guests that an operation covers are visited in one section",
    StaleKept "stale-kept" Unit "hints whose leaves are gone are never replaced",
    SlowerKept "slower-kept" Unit "of two vCPUs that begin the first nested guest at once, the slower one keeps its tables",
    PlanesLost "planes-lost" Unit "tables that were made before memory ran out do not go back",
    FlagAfterValue "flag-after-value" Loom "the shadows become visible to a vCPU before the VM's flag says that they exist",
    HintUnchecked "hint-unchecked" Unit "a fault of L2 does not check the announced numbers after it has entered its hint",
    TablesReadFirst "tables-read-first" Unit "a fault of L2 reads L1's table before the entry that it fills",
    L1TagOnly "l1-tag-only" Unit "an invalidation that reached a nested guest flushes only L1's translations",
    RefusedLeafKept "refused-leaf-kept" Unit "an access that L1's table refuses leaves the leaf that it hit",
    RefusedOnce "refused-once" Unit "a refused leaf is removed at once, and not again when the vCPU comes back to L2",
    FirstEntryUnflushed "first-entry-unflushed" Unit "a vCPU enters L2 on a shadow that is new to it without a flush",
    FlushBelieved "flush-believed" Unit "a flush of L1 is served by one that began before L1 asked for it",
    BroadcastDeferred "broadcast-deferred" Unit "a flush of L1 for all vCPUs empties the shadow, and flushes no TLB",
    BroadcastUnwaited "broadcast-unwaited" Unit "a flush of L1 for all vCPUs returns while a fault still walks L1's table",
    RecycledUnflushed "recycled-unflushed" Unit "a shadow is given to another table of L1, and vCPUs do not notice",
    SlotMovedUnderTables "slot-moved-under-tables" Unit "a memslot is deleted, and shadows of tables that lay in it stay",
    ArmForgetsShadows "arm-forgets-shadows" Unit "a dirty log begins or is harvested, and leaves of nested guests stay writable",
    WriteUnmarked "write-unmarked" Unit "a fault of L2 permits a store, and the page of L1 is not marked",
    LineUnchecked "line-unchecked" Unit "a fault of L2 that has frozen its entry does not check whether L1 has flushed meanwhile",
    QuickUnchecked "quick-unchecked" Unit "a fault of L2 on the short path does not check the announced numbers",
    LineUnmoved "line-unmoved" Unit "a flush of L1 begins without announcing itself to faults under way",
    CheckedBeforeFrozen "checked-before-frozen" Loom "a fault of L2 checks the announced numbers before it freezes its entry",
    SplinterUntold "splinter-untold" Loom "a fault maps a part of a guest's page before it records that the page has parts",
    FrozenPassedBy "frozen-passed-by" Loom "a flush of L1 leaves a frozen entry to its fault",
    FrozenTaken "frozen-taken" Loom "an entry that a fault of L2 has frozen becomes a hole, and two faults write its row",
    AnothersThawed "anothers-thawed" Loom "a thread that does not get to freeze an entry makes a hole of the entry that another thread has frozen",
    RowAfterLeaf "row-after-leaf" Loom "the row is written after the leaf",
    RowIgnored "row-ignored" Unit "a flush of L1 keeps a leaf whose frame L1's table no longer names",
    KeptUnaccessed "kept-unaccessed" Unit "a flush of L1 keeps a leaf whose A L1 has cleared",
    KeptWritable "kept-writable" Unit "a flush of L1 keeps a leaf that allows stores, and whose D L1 has cleared",
    DoorRelaxed "door-relaxed" Loom "a walk enters a shadow whose tables were unlinked by a relaxed exchange",
    WalksUnawaited "walks-unawaited" Loom "tables of a shadow are freed while a walk is in them",
    UnlinkUnnoted "unlink-unnoted" Loom "tables of a shadow are unlinked, and no drop is recorded",
    FreedBesideFault "freed-beside-fault" Unit "tables of a shadow are freed while a fault is in them",
    ReclaimUnannounced "reclaim-unannounced" Unit "tables of a shadow are unlinked, and its line does not move",
    LineReadLate "line-read-late" Unit "a fault of L2 reads the shadow's line after the walk to the table that it will remember",
    NearUnchecked "near-unchecked" Unit "a fault of L2 uses the table that it remembers without a check of the line",
    DropNotedLate "drop-noted-late" Loom "a drop is recorded only after the exchange that removes the leaf",
    DropNotedEarly "drop-noted-early" Loom "a drop is recorded only before the exchange that removes the leaf",
    ServedUnforgotten "served-unforgotten" Unit "if another vCPU's flush of L1 serves this one, the vCPU's own TLB is not flushed",
    HintGoesWithPart "hint-goes-with-part" Unit "a part of a large page of L1 changes, and the hint of the whole page is removed",
    PartByStart "part-by-start" Unit "a part of a large page of L1 changes, and the leaf at the beginning of the page is removed",
    SplitRowAlike "split-row-alike" Unit "all parts of a split leaf get the row of the first part",
    SplitUntold "split-untold" Unit "a page of the guest is split in its shadow, and INVLPG removes only the part at its address",
    SplitPartAlone "split-part-alone" Unit "L1 flushes an address in a page that it has made a table, and the other parts of the page stay mapped",
    LargeHintsMissed "large-hints-missed" Unit "an invalidation does not look for leaves of 2 MiB that map its frames",
    AgingForgetsShadows "aging-forgets-shadows" Unit "an aging pass checks only L1's own mappings",
    WithdrawnServes "withdrawn-serves" Unit "a fault of L2 does not restore a leaf that an aging pass has withdrawn",
    LevelOfTAlone "level-of-t-alone" Unit "a leaf of a shadow is as large as L1's table says, whatever the host has",
    LevelOfHostAlone "level-of-host-alone" Unit "a leaf of a shadow is as large as the host's page, whatever L1's table says",
    WideUnchecked "wide-unchecked" Unit "a fault of L2 maps 1 GiB after it has checked one region of it",
    WholeBelieved "whole-believed" Unit "a flush of L1 keeps a leaf although L1's table now maps only its first part",
    ChangeUnseen "change-unseen" Unit "a walk that fails to set A uses the old value of an entry of L1's table",

    // --- sanitizers: memory ---
}

mod making;

pub use making::{WRONG, each_fails_in_a_process, found, is, with};

#[cfg(test)]
mod tests;
