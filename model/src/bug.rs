//! The seeded mistakes: each is one that a person could make in the real code, and each must be found, in a scenario that
//! is there to find it.

macro_rules! bugs {
    ($($bug:ident $scenario:literal $what:literal,)*) => {
        /// A mistake.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Bug {
            $(#[doc = $what] $bug,)*
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$bug,)*];

            /// What is wrong.
            pub const fn what(self) -> &'static str {
                match self { $(Self::$bug => $what,)* }
            }

            /// The scenario that must find it.
            pub const fn scenario(self) -> &'static str {
                match self { $(Self::$bug => $scenario,)* }
            }
        }
    };
}

impl Bug {
    /// What it is called on command lines and in tables.
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.extend(letter.to_lowercase());
        }
        name
    }
}

bugs! {
    // Faults, invalidations, tables.
    StampAfterResolve "by host address: dirty: upgrade of a dirty leaf | clear 0..1" "the host is asked before the stamp is taken",
    ActiveUnchecked "dirty: unmap 0..2 | write" "a fault does not look at the active set",
    EpochLookedAtOnce "slot 0..2 to other pages | clear of the old ones | slow fault" "a fault does not look at the epoch again after the active set",
    EpochReadAfterSlot "slot 0..2 to other pages | clear of the old ones | slow fault" "a fault reads the epoch after it has looked up the slot",
    RegionReadAfterScan "by region: clear 0..1 | clear 1..2 | slow fault on 0" "a fault takes its stamp after it has looked at the active set",
    RegionUnscanned "by region: clear 0..1 | clear 1..2 | slow fault on 0" "a fault does not look at what is listed in its region",
    EpochUnscanned "dirty: unmap 0..2 | write" "a fault does not look at what is listed on the epoch",
    NewerHidden "by region: upgrade | clear 0..1, fault | protect 0..1" "an invalidation that has taken something away does not look whether a newer one had passed it by",
    FollowedUnnumbered "by region: upgrade | clear 0..1, fault | protect 0..1" "an invalidation that goes over its range once more keeps its number",
    NumberedBeforeListed "by region: clear 0..1 | clear 1..2 | slow fault on 0" "an invalidation takes its number before it is listed",
    SecondLineForgotten "by region: clear 0..4 | slow fault on 2" "an invalidation of two regions is announced in the first",
    EpochStandsAtEnd "slot 0..2 to other pages | clear of the old ones | slow fault" "a wide invalidation ends and does not move the epoch",
    UnlistedFirst "slot 0..2 to other pages | clear of the old ones | slow fault" "the end takes the place off the line before it moves the epoch",
    VersionUnchecked "dirty: upgrade of a dirty leaf | clear 0..1" "a hole is filled though it is newer than the stamp",
    LinkFillsZero "split | clear 0..1 | slow fault" "a new table is filled with holes of version 0",
    LargeUnconfirmed "large fault | clear 0..1 | large fault" "a large leaf is installed though the look said that a part of it is invalidated",
    HoleNotNumbered "recover | fault, fault | clear 0..2" "an invalidation leaves empty entries as they are",
    UpperHoleNotNumbered "large fault | clear 0..1 | large fault" "it leaves empty entries above the lowest level as they are",
    ListedBeforePlace "by host address: dirty: upgrade of a dirty leaf | clear 0..1" "an invalidation is announced before its place is written",
    EndBeforeFlush "dirty: unmap 0..2 | write" "the end comes before the flush",
    HostBeforeFlush "dirty: unmap 0..2 | write" "the host changes its entry before the flush",
    LeakedUnpaid "leak 0..2 | slow fault on 0 | fault on 1" "an invalidation whose debt was leaked ends without its flush",
    NoAdoption "split | clear 0..2 | unmap 0..2" "a hole of an invalidation that has not flushed yet owes nothing",
    AdoptedNarrowly "by region: zap all | clear 2..3 | clear 0..1" "an adopter of a flush beyond its range stays on the lines of its regions",
    NoAdoptionAtLeaves "nothing: protect 0..2 | protect 0..2 | slow fault on 0" "a leaf left alone beside an invalidation that has not flushed yet owes nothing",
    WidenWithoutNumber "by host address: clear 0..1 | clear 1..2, recover | slow fault on 1" "a wider range is published under the old number",
    FrozenWithoutFlush "dirty: recover | clear 0..2" "a frozen entry is replaced and owes nothing",
    FrozenTakenAsClean "dirty: recover | clear 0..2" "a frozen entry is replaced and its pages are not reported dirty",
    CursorLooksAgain "dirty: recover | clear 0..2" "a link that was left alone is loaded again to go down, and may be a hole by then",
    CursorForgetsLostCas "split | clear 0..2 | unmap 0..2" "the same, of a link that a lost CAS had met",
    UnhookWithoutFlush "dirty: unmap 0..2 | write" "a table is unhooked and owes nothing",
    FlushKeepsLinks "dirty: unmap 0..2 | write" "a ranged flush keeps cached links",
    FreedBeforeFlush "dirty: unmap 0..2 | write" "a dead table is given back before the flush",
    FreedBeforeGrace "dirty: unmap 0..2 | write" "a dead table is given back before the grace period",
    UpgradeWithoutFreeze "recover | upgrade | protect" "a permission upgrade is one CAS",
    UpgradeStampsFirst "recover | upgrade | protect" "an upgrade takes its stamp before it freezes",
    RecoverWithoutFreeze "dirty: recover | clear 0..2" "a table becomes a large leaf by one CAS",
    RecoverStampsFirst "dirty: recover | clear 0..2" "a recovery takes its stamp before it freezes",
    RecoverWithoutFlush "dirty: recover | clear 0..2" "a recovery owes nothing",
    RecoverForgetsTable "dirty: recover | clear 0..2" "a recovery whose thaw fails forgets the table",
    RecoveriesShareAMark "recover | clear 0..2, recover | slow fault" "frozen links are all the same word",
    RecoverTakesDirtyAtThaw "dirty: recover | clear 0..2" "the large leaf is as dirty as the small ones were at the thaw",
    SplitByStore "dirty: split | clear 0..1" "a split stores the link, built from what it had loaded",
    NeighbourCleaned "dirty: clear 0..1 of a large leaf | store to 1" "a split for a part takes the Dirty of the other part for clear",
    NeighbourLeftOut "clear 0..1 of a large leaf | clear 1..2 | slow fault" "a split for a part leaves a hole in place of the other part",
    LostSplitBelieved "clear 0..1 of a large leaf | clear 1..2 | slow fault" "an invalidation goes on in its table though the CAS that links it was lost",
    AgeByStore "dirty: age | clear 0..1" "Accessed is cleared by a store of what had been loaded",
    DirtyReadBeforeFlush "dirty: unmap 0..2 | write" "Dirty of a dead table is read when it is unhooked",
    DirtyToldAfterHost "dirty: unmap 0..2 | write" "Dirty of a dead table is read when it is collected",
    OnlyTheFlipReloads "zap all | clear 0..1 | slow fault" "a vCPU reloads its root for the flush of the flip only",
    FlipWithoutTicket "zap all | clear 0..1 | slow fault" "the root is replaced without an invalidation",
    FlipFillsZero "zap all | clear 0..1 | slow fault" "the new root is filled with holes of version 0",
    MmioForever "slot deleted, made again | faults" "an MMIO entry is believed whatever was published since",
    MmioUnconfirmed "slot 1 grows to 1..3 | faults on MMIO" "an MMIO entry is installed without a look at the active set",
    MmioUnlooked "slot 0..1 grows to 0..2 | faults on MMIO, in no table" "a hole that is newer than all that was looked at becomes an MMIO entry",
    SlotsEndBeforeGrace "slot to other pages | clear of the old | clear of the new, fault | slow fault" "slots: the end comes before readers of the old slots are gone",
    RestKeepsSlots "slot to other pages, clear of the new, fault | clear of the old that rests | slow fault" "a walk that rested goes on with the slots of before",
    ToldUnannounced "change 0 | clear 1..2 by host address | slow fault on 0" "pages are told to have changed in a range that was not announced",
    ToldHoleNotNumbered "change 0..2 | slow fault on 0, in an empty table" "a page that is told to have changed leaves its hole as it is",
    ReplacedWithoutFlush "change 0 | slow fault on 0 | fault on 1" "a leaf is replaced and owes nothing",
    ReplacedWritable "change 0 | slow fault on 0 | fault on 1" "a leaf is replaced by a writable one",
    UnlockedBeforeFlush "change 0 | write to 0 | fault on 0" "the copy of a share can be written before the old page is flushed",
    // Tracked stores.
    WatchUnasked "tracked: upgrade | track 0..1" "a fault that has its stamp does not ask whether stores to the frame are tracked",
    WatchAskedFirst "tracked: store to an empty table | track 0..1 | load" "a fault asks whether stores to the frame are tracked before it has its stamp",
    RecoverUnwatched "tracked: recover | track 0..1" "a table becomes a large leaf though stores to a frame of it are tracked",
    // Frames that are held.
    HeldUnconfirmed "held: hold 0 | clear 0..1" "a hold asks the host without a look at the active set",
    HeldTakenMissed "held: hold 0 | clear 0..1" "a hold stores the host's answer, whatever was taken back while the host was asked",
    HeldPublishedLate "held: hold 0 | clear 0..1" "a hold publishes which page it holds after the host has answered",
    HeldKept "held: hold 0, hold 0 | clear 0..1" "an invalidation leaves a held frame as it is",
    HeldLookedFirst "held: hold 0, hold 0 | clear 0..1" "a use of a held frame looks whether it is valid, and then says that it has begun",
    HeldUnwaited "held: hold 0, hold 0 | clear 0..1" "an invalidation does not wait for the use of a frame that it takes back",
    HeldUnflushed "held: interrupts: hold 0 for hardware | clear 0..1, in an empty table" "a frame that hardware uses is taken back, and a flush is owed only for its leaf",
    HeldUnadopted "held: kicks: clear 0..1 | clear 0..1, in an empty table" "an invalidation that finds a held frame taken back owes nothing",
    HeldBroadcast "broadcast: held: kicks: clear 0..1, in an empty table" "the flush of a held frame is broadcast, and hardware keeps the frame",
    HeldBeforeEntry "held: interrupts: hold 0 for hardware | clear 0..1, in an empty table" "a vCPU takes a held frame for hardware before it says that it is in the guest",
    // Slots.
    CellsNotWaitedFor "cells: slots made, made | faults" "a version is written where a reader reads an older one",
    PublishedBeforeZap "slot withdrawn | clear by host address | slow fault" "a slot is gone before what it maps is",
    SlotsUnannounced "slot withdrawn | clear by host address | slow fault" "slots change without an invalidation of their frames",
    ConvertedUncovered "private: 0 becomes private, and shared again | clear of the shared page | slow fault" "a frame becomes private when the invalidation of it has ended",
    CopiedUnsettled "park 0 | copy 0" "a page is copied before the flush that another change of it owes",
    // A primary MMU.
    MappingBeforeLock "primary: munmap | store, in no table" "a fault reads the mapping before it takes the page lock",
    VersionNotOutlasted "primary: munmap | store, in no table" "a change edits entries beside faults that go by the version before",
    RangeNotKept "primary: munmap | mmap, store" "others map a range while munmap empties its entries",
    ForkUnshown "primary: fork | store to 0, to 1" "faults go on while a fork copies private mappings",
    VersionFreedEarly "primary: munmap | store elsewhere, in no table" "what a version has replaced is freed when the page locks of the range have been free",
    FreedBeforeTlb "primary: munmap | store, store" "munmap frees a frame which a vCPU may still store to",
    ProtectedBeforeTlb "primary: mprotect | store, store" "mprotect ends, and a vCPU may still store",
    EvictedBeforeTlb "primary: evict | store, store" "the contents of a page are stored, and a vCPU may still store to it",
    LeavingTwice "primary: evict, host's write | evict | load" "two threads take the same page to swap at once",
    ShareOverwritten "primary: fork, evict child | store" "a page that is in the swap cache is written in place",
    ForkedBeforeTlb "primary: fork | store to 0, to 1" "a fork ends, and a vCPU may still store to what it shares",
    // Hosts that share a store.
    FleetUnconditional "fleet: upload | upload | collect" "a host writes the catalog whatever it is by then",
    FleetNameReused "fleet: upload, upload | remove | collect" "a chunk that was deleted has the same name when it is written again",
    FleetFloorIgnored "fleet: upload | upload | collect" "a collection deletes what uploads under way have written",
    FleetRetiredIgnored "fleet: upload | remove | collect" "a collection does not keep what an upload relies on whose template has gone since",
    FleetGivenUpPublished "fleet: stalled: upload | remove, upload of it | collect" "an upload that a collection gave up becomes a template",
    FleetPinnedBlindly "fleet: open, close | remove | collect" "a host that has pinned a template does not look whether it is still there",
    FleetLeasesUnread "fleet: open, close | remove | collect" "a collection reads no lease",
    FleetLeasesReadFirst "fleet: open, close | remove | collect" "a collection reads the leases, and then which templates there are",
    FleetMissingPassed "fleet: upload | remove, collect | collect" "a collection goes on where another one has deleted a manifest that the catalog had",
    FleetOwnClock "fleet: in time: open, close | remove, collect" "a collection tells the age of leases by its own clock, which is ahead",
    FleetImpatient "fleet: in time: open, close | remove, collect" "a lease has ended before a slow host renews it",
    FleetLeaseRevived "fleet: stalled: open, close, open, close | remove | collect" "a host that stalled writes its lease, which has ended, again",
    FleetManifestByContent "fleet: stalled: upload | remove, upload of it | collect" "manifests that list the same content under different names have one name",
    FleetUploadKept "fleet: stalled: upload | collect" "an upload whose host is gone stays in the catalog",
    // What a vCPU remembers.
    SlotChangedStampKept "memo: slot 1 deleted | clear of its page | faults on 0, 1, 1" "a vCPU that looks up another slot keeps the stamp that it confirmed for the one before",
    TableRemembered "memo: zap all | faults on 0, 1" "a vCPU goes on in the table that it remembers though the epoch has moved",
    RegionForgotten "memo: unmap 0..2 | clear 1..2 | faults on 0, 1" "the same, though the region's word has moved",
    NumberForgotten "memo: unmap 0..2 | clear 1..2 | faults on 0, 1" "the same, though N has moved",
    QuietBeside "memo: clear 2..3 | clear 0..1 | faults on 0, 2, 0" "a vCPU takes the VM for quiet beside an active invalidation",
    QuietUndated "memo: zap all | faults on 0, 1" "a vCPU takes the VM for quiet though the epoch has moved since it has found its table",
    FrameConfirmedAsTable "memo: clear 1..2 | clear 0..1 | faults on 0, 1" "what was confirmed for one frame is believed for its table",
    SlotRemembered "memo: slot 0 to another page | faults on 0" "a vCPU confirms the slot that it remembers whatever was published since",
    // Kicks.
    ModesBeforeNumber "kicks: clear 0..1" "a flusher looks who is in the guest before it numbers its flush",
    EnterWithoutCatchUp "kicks: clear 0..1" "a vCPU enters the guest and forgets nothing",
    EnterLooksFirst "kicks: clear 0..1" "a vCPU looks for flushes before it says that it is in the guest",
    KickClearedLate "kicks: clear 0..1, clear 1..2" "a kick is cleared after the generation was looked at",
    GoUnlooked "interrupts: clear 0..1" "the last step into the guest does not look for a kick",
    LookedBeforeHeld "interrupts: clear 0..1" "the last step into the guest looks for a kick, and then holds interrupts",
    InterruptedFirst "interrupts: clear 0..1" "a flusher interrupts a vCPU, and then says that it is kicked",
    BroadcastBesideFlip "broadcast: zap all | clear 0..1 | slow fault" "a flush is broadcast while a root is being replaced",
    BroadcastToGuests "broadcast: kicks: clear 0..1" "a broadcast reaches only the TLBs of vCPUs that are in the guest",
    KicksAndGoesOn "kicks: clear 0..1" "a flusher kicks and does not wait for the vCPUs",
    RingUnchecked "kicks: clear 0..1, clear 1..2" "a range in the ring is believed without its number",
    RingShared "kicks: clear 0..1 | clear 1..2" "two flushers write one place of the ring at once",
    RootBeforeCatchUp "kicks: zap all" "a vCPU looks for a new root before it catches up",
    // Logs.
    ArmBeforeTake "by W: harvest | harvest | store" "a harvest arms pages before it takes their marks",
    MarkBeforePermission "by W: harvest twice | store, store" "a fault marks the page before it may be written",
    LoadMapsWritable "by W: harvest | clear 0..1, load | store" "a load maps a page writable where writes are logged",
    CopyBeforeFlush "by W: harvest | harvest | store" "pages are copied before the flush",
    ArmWithoutFlush "by W: harvest | harvest | store" "a harvest owes nothing",
    LogWithoutFlush "by W: log begins | slow store | clear 0..1" "a log that begins owes nothing",
    LogBeforeGrace "by W: log begins | store to an empty table" "a log is armed while faults are under way that saw none",
    HarvestBeforeGrace "by W: log begins, marked | harvest | store" "a log that begins marked is harvested while faults are under way that saw none",
    AskForgetsLog "by W: log begins | store to an empty table" "a fault that slept believes that the slot logs as before",
    MarksBeforeTables "by D: harvest twice | clear 0..1" "a harvest by D looks at the marks before the tables",
    HarvestByStore "by D: harvest twice | clear 0..1" "a harvest clears D by a store of what had been loaded",
    HarvestWithoutGrace "by D: harvest twice | clear 0..1" "a harvest by D does not wait for a thread that has marked a leaf and takes it away later",
    HarvestFlushesFirst "by D: harvest twice | clear 0..1" "a harvest by D flushes, and waits for the threads that marked after that",
    KeptLate "by D: harvest | unmap 0..2 | load" "a leaf goes before its D is marked",
    UnhookTakesDirty "by D: harvest | unmap 0..2 | load" "a table is unhooked with the D bits of its leaves",
    FlipTakesDirty "by D: harvest | zap all" "the root is replaced with the D bits below it",
    FrozenNotKept "by D: harvest | upgrade of a dirty leaf | clear 0..1" "a dirty leaf is frozen and not marked",
    // Nested guests.
    EntryAfterLeaf "nested: fault | zap 0 | zap 0" "a fault of L2 enters its leaf in the reverse map when the leaf is installed",
    EntryUnchecked "nested: fault | zap 0 | zap 0" "a fault of L2 that is in the reverse map does not look at the lines again",
    ShadowUnrechecked "nested: large: T to 1, flush | store | zap 0" "it looks at the host's lines again, not at the shadow's",
    ChunkAnswers "nested: fault on nothing | another | zap 0" "it looks at a number in the chunk of the reverse map in place of the lines",
    TablesReadFirst "nested: T to 1, flush | fault on nothing" "a fault of L2 reads L1's tables before the shadow's line",
    ShadowFaultUnscanned "nested: fault | zap 0 | zap 0" "a fault of L2 does not look for active invalidations",
    ShadowFillsZero "nested: fault on nothing | zap 0" "a new table of a shadow is filled with holes of version 0",
    ShadowNumberUnchecked "nested: fault on nothing | zap 0" "a fault of L2 fills a hole that is newer than what it knows",
    RowUnfrozen "nested: T to 1, fault | fault | zap 1, spared" "the frame of L1 beside a leaf is written before the entry is frozen",
    RowStored "nested: large: T to 1, flush | store | zap 1, spared" "the frame of L1 beside a leaf is written by a store",
    RowUnowned "nested: large: T to 1, flush | store | zap 1, spared" "it is exchanged by a fault that did not look whether the entry is frozen still",
    WriteWithoutDirty "nested: leaf, D taken, flush, load, store" "a leaf of a shadow may be written though Dirty in L1's table is clear",
    UpgradeUncompared "nested: clean leaf, D taken, flush, store | store" "a leaf of a shadow gets write by one CAS",
    RefusedLeafKept "nested: leaf without write, store refused, T to 1, load" "L1 gets a fault, and the leaf that it hit stays",
    RefusedOnce "nested: leaf without write, store refused, T to 1, load | load, as built" "what L1's table refused goes at once, and not again when the vCPU comes back",
    RefusedBesideDebt "nested: leaf without write, store refused, T to 1, load | zap 0" "L1 gets a fault beside one that has not flushed yet, and nothing is flushed when it comes back",
    WriteUnmarked "nested: logged: store, store | harvest twice" "a fault of L2 gives write and does not mark L1's frame",
    ArmForgetsShadows "nested: logged: store, store | harvest twice" "a harvest arms L1's mappings, not L2's",
    ShadowLogBeforeGrace "nested: log begins | store to nothing" "a log is armed while faults of L2 are under way that saw none",
    ArmedPassedBy "nested: logged: store | protect 0 | harvest" "a leaf of a shadow that a log has armed counts as one that never allowed stores",
    ShadowDebtUnadopted "nested: leaf, T to 1, fault | zap 0 | zap 0" "what is left alone in a shadow beside one that has not flushed yet owes nothing",
    ReachedLate "nested: leaf, T to 1, fault | zap 0 | zap 0" "an invalidation says that it owes L2's tag a flush when it has edited the shadow",
    DebtsBySpace "nested: leaf, T to 1, fault | zap 0 | zap 0" "the same, but for flushes of that shadow",
    ChildHoleKept "nested: fault on nothing | zap 0" "an invalidation leaves the hole of a missing leaf table of a shadow as it is",
    RemovedUncompared "nested: leaf, D taken, flush | store | zap 0" "an entry of the reverse map is removed whatever its head is by now",
    RemovedBeforeFlush "nested: leaf, fault | protect 0 | zap 0" "an entry of the reverse map is removed before the flush",
    HeadReadLate "nested: leaf, D taken, flush | store | zap 0" "a flush reads the head of the reverse map when it has taken the leaf away",
    FlushRemovesFirst "nested: leaf, T to 1, flush, fault | zap 0" "a flush of L1 removes entries of the reverse map before its own flush of TLBs",
    L1TagOnly "nested: leaf, canonical too, fault | zap 0" "L1's tag is flushed, L2's is not",
    OutsideUnflushed "nested: leaf, out of L2 and back | zap 0" "a flush of L2's tag leaves out the vCPUs that are not in L2",
    HullsMixSpaces "nested: leaf of 1, fault | zap 1" "L2's tag is flushed by frames of L1",
    FlushWithoutBumps "nested: T to 1, flush | fault" "a flush of L1 leaves holes as they are",
    KeptUnaccessed "nested: leaf without write, A taken, flush, load" "a flush of L1 keeps a leaf whose Accessed L1 has cleared",
    FirstEntryUnflushed "nested: leaf, T to 1 | first entry" "a vCPU that was never in a shadow enters it as it is",
    CoalescedWithOlder "nested: leaf, flush | T to 1, flush" "a flush of L1 is served by one that began before it",
    CoalescedUnwaited "nested: leaf, flush | T to 1, flush" "a flush of L1 is served by one that has not ended",
    BroadcastDeferred "nested: leaf, T to 1, broadcast | faults" "a flush that L1 broadcasts waits for each vCPU's next entry",
    RecycledUnflushed "nested: another root and back" "a shadow is given to another root without a flush",
    SlotMovedUnderTables "nested: leaf, fault | slot of T moves" "the memslot of L1's tables moves, and shadows stay",
    LineUnrechecked "nested: T to 1, flush | fault, as built" "a fault of L2 that has frozen its entry does not look at the shadow's line again",
    CheckedBeforeFrozen "nested: T to 1, flush | fault, as built" "a fault of L2 looks at the lines again, and then freezes its entry",
    FrozenPassedBy "nested: T to 1, flush | fault, as built" "a flush of L1 leaves a frozen entry of a shadow to its fault",
    FrozenTaken "nested: T to 1, flush, back, flush | fault, as built" "a frozen entry of a shadow becomes a hole, and another fault writes the row beside its owner",
    RowAfterLeaf "nested: leaf of 1, T to 0, flush, back, flush | fault, as built" "the row is written when the leaf is there",
    DropNotedLate "nested: leaf, T to 1, flush, fault | zap 0, as built" "what is taken from a leaf of a shadow is put down when it is gone",
    DropNotedEarly "nested: leaf, T to 1, broadcast | broadcast, back, as built" "what is taken from a leaf of a shadow is put down before it is gone, not after",
    ArmUnnoted "nested: logged: leaf, D taken, flush, store | harvest, as built" "a log withdraws write from a leaf of a shadow, and does not put that down",
    ServedUnforgotten "nested: leaf, flush | T to 1, flush of both, as built" "a flush of L1 that another vCPU's has served leaves the vCPU's own TLB as it is",
    SettledEarly "nested: leaf, T to 1, broadcast | broadcast, back, as built" "a broadcast that L1 asks for says that it has made all TLBs forget before they have",
    UnlinkUnnoted "nested: leaf, T to 1, flush, load | its table goes, as built" "tables of a shadow are unlinked, and that is not put down as a drop",
    ReclaimUnannounced "nested: faults near the last | zap 0 | its table goes, as built" "tables of a shadow are unlinked, and its line does not move",
    LineReadLate "nested: faults near the last | zap 0 | its table goes, as built" "a fault of L2 walks to the table that it will remember, and then reads the shadow's line",
    NearUnchecked "nested: faults near the last | zap 0 | its table goes, as built" "a fault of L2 goes by the table that it remembers, and does not look at the line first",
    FreedUnflushed "nested: leaf, load | store | its table goes, as built" "tables of a shadow are freed before TLBs have forgotten the links to them",
    FreedBesideFault "nested: leaf, fault | zap 0 | its table goes, as built" "tables of a shadow are freed while a fault is in them",
    FreedBesideWalk "nested: leaf, fault | zap 0 | its table goes, as built" "tables of a shadow are freed while an invalidation is in them",
    HintGoesWithPart "nested parts: part 0 moves, part 1 moves" "a part of a large page of L1 moves, and the hint of the page goes",
    PartByStart "nested parts: part 1 moves" "a part of a large page of L1 moves, and what was made of its beginning goes",
    WideUnchecked "nested parts: nothing, fault | part 1 moves" "a fault that maps a large page looks at its own part's line, not at N",
    SplitUnfrozen "nested parts: T to 1 and back, flush | part 1 of 0 moves | part 0 of 0 moves" "a large leaf is split by one exchange, with the row that was read before",
    SplitUnnoted "nested parts: T to 1, flush | part 1 moves" "a large leaf is frozen to be split, and that is not put down as a drop",
    DroppedWithEntries "nested: leaf, T to 1, flush, fault | zap 0, dropped" "a flush that drops a shadow's tables drops its entries in the reverse map",
}
