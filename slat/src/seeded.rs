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
    HoldUnfenced "hold-unfenced" Loom "no fence between the page that a hold publishes and its stamp",
    UsesRelaxed "uses-relaxed" Loom "an invalidation waits for the end of a use of a held frame by relaxed loads",
    UseEndRelaxed "use-end-relaxed" Loom "a use of a held frame ends by a relaxed store",
    HeldUnconfirmed "held-unconfirmed" Loom "a hold asks the host although the stamp found an active invalidation",
    HeldTakenMissed "held-taken-missed" Loom "a hold stores the host's answer although an invalidation took the page back in between",
    HeldKept "held-kept" Loom "an invalidation does not take a held frame back",
    HeldUnwaited "held-unwaited" Loom "an invalidation does not wait for the use of a frame that it takes back",
    HeldUnadopted "held-unadopted" Loom "an invalidation that finds a held frame taken back owes nothing",

    // --- shuttle: steps of the whole engine ---
    StampUnconfirmed "stamp-unconfirmed" Shuttle "a fault does not check for active invalidations before it asks the host",
    FlushUnanswered "flush-unanswered" Shuttle "a shootdown does not wait until every vCPU has answered",
    FlushedTooEarly "flushed-too-early" Shuttle "an invalidation says that it has flushed before it flushes",
    AdoptedNarrowly "adopted-narrowly" Shuttle "an invalidation that adopts a debt beyond its range stays listed only on the lines of its own regions",
    NotAdopted "not-adopted" Shuttle "a walk that meets an unflushed hole does not adopt the debt",
    FrozenUnflushed "frozen-unflushed" Shuttle "an invalidation takes a frozen entry for one that no TLB holds",
    QuietBeside "quiet-beside" Shuttle "a vCPU treats the VM as quiet beside an active invalidation",
    RootKept "root-kept" Shuttle "a vCPU that answers a flush does not load the new root",
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
    OverlapBelow "overlap-below" Fuzz "a new slot is compared with the slot that begins below it, not with one that begins inside it",
    TrackedUncounted "tracked-uncounted" Fuzz "a withdrawn leaf that is zapped stays in the count of withdrawn leaves",
    Incongruent "incongruent" Fuzz "a large page is mapped where guest and host addresses are not congruent",
    CarryLost "carry-lost" Fuzz "dirty bits of a table that begins inside a word are cut at the end of the word",
    // --- worlds: what guests stored ---
    EnterUnflushed "enter-unflushed" Worlds "a vCPU enters the guest without the flushes that were requested while it was out",
    FrameUnchecked "frame-unchecked" Unit "a frame of the host that the format cannot hold, or that does not fit the page's size, is mapped",

    // --- shared: what guests read on processors that they share ---
    ProcessorBelieved "processor-believed" Shared "a vCPU that comes back to a processor uses the translations that it left there",

    // --- slat-mm's own tests ---
    FullBelieved "full-believed" Host "swap space that was full once is never tried again",
    NoFrameIsFull "no-frame-is-full" Host "swap space counts as full when only the arena has no frame",
    PoolChargedToAll "pool-charged-to-all" Host "each address space is charged for the whole pool of copies",
    BooksHeld "books-held" Host "the lock of the swap accounts is held while a device writes",
    OneAtATime "one-at-a-time" Host "the writes of a batch are submitted one after the other",
    NeverProbed "never-probed" Host "a device that failed once is not tried again while another has room",
    GroupsTogether "groups-together" Host "memory of other groups counts towards a group's limit",
    StoredUnderLock "stored-under-lock" Host "the lock of the mappings is held while a page goes to the swap device",
    VersionNotOutlasted "version-not-outlasted" Host "a change of the mappings edits entries beside faults that use the old version",
    MappingBeforeLock "mapping-before-lock" Host "a fault looks up the mapping before it takes the page lock",
    RangeNotKept "range-not-kept" Host "another thread may map a range while munmap empties its entries",
    ForkUnshown "fork-unshown" Host "faults continue while a fork copies private mappings",
    MoveShownEarly "move-shown-early" Host "faults find the new mapping of a range while its pages are being moved",
    ShareUnlooked "share-unlooked" Host "a share is broken without a check of the current mapping",
    MergeUnlooked "merge-unlooked" Host "a page is merged without a check of the current flags of its mapping",
    TrimmedUnlocked "trimmed-unlocked" Host "free frames go back to the system without the lock that protects the free frames",
    ZeroedHidden "zeroed-hidden" Host "a thread that needs any free frame does not find frames that were zeroed ahead",
    ZeroedLate "zeroed-late" Host "frames are offered as zeroed ahead before they are zeroed",
    ZoneAlone "zone-alone" Host "a thread whose zone has no free frame tries no other zone of its node",
    ShareUncounted "share-uncounted" Host "a second entry that refers to the copy of a shared page takes no reference to the copy",
    ShareOverwritten "share-overwritten" Host "a page that is in the swap cache is written in place",
    CacheUncounted "cache-uncounted" Host "the swap cache takes no reference to a frame, but drops one",
    KinForgotten "kin-forgotten" Host "the eviction of a shared page leaves out the entries of forks",
    LeavingTwice "leaving-twice" Host "two threads take the same page to swap at once",
    UnmappedUnsaid "unmapped-unsaid" Host "a thread that needs room does not find frames that only the swap cache has",

    // --- load: a guest, devices, swap and merging on slat-mm ---
    RefaultUncharged "refault-uncharged" Host "a page that comes back from swap is charged to no group",
    FailureBelieved "failure-believed" Host "a page that a swap device failed to store counts as stored",
    ZeroedInName "zeroed-in-name" Host "free frames are offered as zeroed ahead and still hold old contents",
    EvictorAlone "evictor-alone" Load "an evictor uses the limit of its address space, not its group's",

    // --- miri ---
    NoteNarrowed "note-narrowed" Miri "the place of a chunk's notes is computed from a reference to one of them",

    // --- callbacks that panic ---
    ArmedAfterEvent "armed-after-event" Inject "a transaction reports a grace period before it arms the log that it has published",
    ArmedAfterSplit "armed-after-split" Inject "a panic while large pages are split leaves a published log without arming",
    BusyForEver "busy-for-ever" Inject "a panic of the host while it takes memory back leaves a thread counted as busy",
    TakenAside "taken-aside" Inject "pages taken from a log are not in the harvest yet when the host is called",
    AskedOnce "asked-once" Inject "a flush that L1 asked for is forgotten when the host panics in it",
    PartUnmarked "part-unmarked" Inject "an emulated store that panics half-way does not mark its page",
    ListenersCutShort "listeners-cut-short" Inject "if one listener panics, the others are not told of a store that was made",
    UnansweredForgotten "unanswered-forgotten" Inject "a vCPU whose cache panics in an answer stays in the guest without a kick",
    ToldBeforeCalled "told-before-called" Inject "a collected page counts as reported before the callback has it",

    // --- unit tests ---
    IdleInSection "idle-in-section" Unit "a thread takes its token inside a section of a call that has not got it",
    KicksCutShort "kicks-cut-short" Unit "if one kick panics, the remaining vCPUs are not kicked, and the flusher waits for none",
    CopiedUnsettled "copied-unsettled" Unit "a page is copied before the flush that an earlier change owes",
    SeatsFixed "seats-fixed" Unit "a thread waits when all seats are taken, and adds no seats",
    PlaceNotKept "place-not-kept" Unit "an event that may not block takes another place of the active set when a page is reported",
    SeatNotKept "seat-not-kept" Unit "an event that may not block gives its seat back before its pages are reported",

    ReadyForgotten "ready-forgotten" Unit "an entry into the guest clears the kick of a ready token as an answered flush",
    LeakedGuardBelieved "leaked-guard-believed" Unit "a vCPU whose guard was leaked begins a section on a seat that is marked at rest",
    CachesBelieved "caches-believed" Unit "a vCPU that enters on another processor, or under a reused number, uses the translations that are cached there",
    LoadedKept "loaded-kept" Unit "if the flush of another processor's caches fails, the vCPU still trusts those of the last processor",
    ToldFirstFrame "told-first-frame" Unit "every small leaf of a reported large page gets the first frame",
    DetachedEnded "detached-ended" Unit "an invalidation ends when it is detached from its VM",
    CutUnzapped "cut-unzapped" Unit "the part that is cut out of a memslot is not zapped",
    CutClean "cut-clean" Unit "the rest of a memslot that logs becomes clean when a part is cut out",
    CutShared "cut-shared" Unit "private frames become shared when the memslot around them is cut",
    SnapshotUnasked "snapshot-unasked" Unit "nodes of an old version of the slots are reused while a snapshot of it exists",
    HeldUnflushed "held-unflushed" Unit "taking back a frame that hardware uses owes a flush only if a leaf maps it",
    HeldBroadcast "held-broadcast" Unit "the flush of a held frame is broadcast, and hardware keeps the frame",
    HeldUnmarked "held-unmarked" Unit "a held frame that the VMM has written is not marked",
    HeldTracked "held-tracked" Unit "a frame whose stores are tracked is held to write",
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
    WithdrawnServes "withdrawn-serves" Unit "a fault of L2 does not restore a leaf that an aging pass has withdrawn",
    LevelOfTAlone "level-of-t-alone" Unit "a leaf of a shadow is as large as L1's table says, whatever the host has",
    LevelOfHostAlone "level-of-host-alone" Unit "a leaf of a shadow is as large as the host's page, whatever L1's table says",
    WideUnchecked "wide-unchecked" Unit "a fault of L2 maps 1 GiB after it has checked one region of it",
    WholeBelieved "whole-believed" Unit "a flush of L1 keeps a leaf although L1's table now maps only its first part",
    ChangeUnseen "change-unseen" Unit "a walk that fails to set A uses the old value of an entry of L1's table",

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
