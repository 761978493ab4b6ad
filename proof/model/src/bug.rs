//! The seeded mistakes. A person could make each of them in the real code. The scenario that a mistake names must find
//! it.

macro_rules! bugs {
    ($($bug:ident $scenario:literal $what:literal,)*) => {
        /// A seeded mistake.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Bug {
            $(#[doc = $what] $bug,)*
        }

        impl Bug {
            /// All mistakes.
            pub const ALL: &[Self] = &[$(Self::$bug,)*];

            /// Returns what is wrong.
            pub const fn what(self) -> &'static str {
                match self { $(Self::$bug => $what,)* }
            }

            /// Returns the name of the scenario that must find it.
            pub const fn scenario(self) -> &'static str {
                match self { $(Self::$bug => $scenario,)* }
            }
        }
    };
}

impl Bug {
    /// Whether it is a mistake of [`Scenario`](crate::Scenario)s, which [`walk`](crate::walk)s draw, too.
    pub fn is_walked(self) -> bool {
        !["nested", "primary", "fleet", "daemon"].iter().any(|other| self.scenario().starts_with(other))
    }

    /// Returns the mistake with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|bug| bug.name() == name)
    }

    /// Returns its name on command lines and in tables.
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
    ActiveUnchecked "dirty: unmap 0..2 | write" "a fault does not check the active set",
    EpochLookedAtOnce "slot 0..2 to other pages | clear of the old ones | slow fault" "a fault does not check the epoch again after the active set",
    EpochReadAfterSlot "slot 0..2 to other pages | clear of the old ones | slow fault" "a fault reads the epoch after it has looked up the slot",
    RegionReadAfterScan "by region: clear 0..1 | clear 1..2 | slow fault on 0" "a fault takes its stamp after it has checked the active set",
    RegionUnscanned "by region: clear 0..1 | clear 1..2 | slow fault on 0" "a fault does not check the invalidations that are listed in its region",
    EpochUnscanned "dirty: unmap 0..2 | write" "a fault does not check the invalidations that are listed on the epoch",
    NewerHidden "by region: upgrade | clear 0..1, fault | protect 0..1" "an invalidation that removed a mapping does not check whether a newer one covered the entry before",
    FollowedUnnumbered "by region: upgrade | clear 0..1, fault | protect 0..1" "an invalidation that repeats its range keeps its number",
    FollowedOnce "by region: upgrade | protect 0..2 | protect 0..1 | slow store to 0" "an invalidation that repeats its range, and removed a mapping again, does not look again",
    WidenedNarrowly "by region: clear 0..1 of a large leaf | protect 1..2 | slow store to 1 | slow fault on 1" "an invalidation that zaps beyond its range stays narrow",
    NumberedBeforeListed "by region: clear 0..1 | clear 1..2 | slow fault on 0" "an invalidation takes its number before it is listed",
    SecondLineForgotten "by region: clear 0..4 | slow fault on 2" "an invalidation of two regions is announced only in the first",
    EpochStandsAtEnd "slot 0..2 to other pages | clear of the old ones | slow fault" "a wide invalidation ends and does not move the epoch",
    UnlistedFirst "slot 0..2 to other pages | clear of the old ones | slow fault" "an invalidation that ends takes its place off the line before it moves the epoch",
    VersionUnchecked "dirty: upgrade of a dirty leaf | clear 0..1" "a fault fills a hole that is newer than the stamp",
    LinkFillsZero "split | clear 0..1 | slow fault" "a new table is filled with holes of version 0",
    LargeUnconfirmed "large fault | clear 0..1 | large fault" "a fault installs a large leaf although an active invalidation covers a part of it",
    HoleNotNumbered "recover | fault, fault | clear 0..2" "an invalidation does not number holes",
    UpperHoleNotNumbered "large fault | clear 0..1 | large fault" "an invalidation does not number holes above the lowest level",
    ListedBeforePlace "by host address: dirty: upgrade of a dirty leaf | clear 0..1" "an invalidation is announced before its place is written",
    EndBeforeFlush "dirty: unmap 0..2 | write" "an invalidation ends before its flush",
    HostBeforeFlush "dirty: unmap 0..2 | write" "the host changes its entry before the flush",
    LeakedUnpaid "leak 0..2 | slow fault on 0 | fault on 1" "an invalidation whose debt was leaked ends without its flush",
    NoAdoption "split | clear 0..2 | unmap 0..2" "an invalidation that meets an unflushed hole does not adopt the debt",
    AdoptedNarrowly "by region: zap all | clear 2..3 | clear 0..1" "an invalidation that adopts a debt beyond its range stays listed only on the lines of its own regions",
    NoAdoptionAtLeaves "nothing: protect 0..2 | protect 0..2 | slow fault on 0" "an invalidation that leaves a leaf unchanged does not adopt the debt of an unflushed one",
    WidenWithoutNumber "by host address: clear 0..1 | clear 1..2, recover | slow fault on 1" "a wider range is published under the old number",
    FrozenWithoutFlush "dirty: recover | clear 0..2" "an invalidation replaces a frozen entry and owes no flush",
    FrozenTakenAsClean "dirty: recover | clear 0..2" "an invalidation replaces a frozen entry and does not mark its pages dirty",
    CursorLooksAgain "dirty: recover | clear 0..2" "a walk loads an unchanged link again to go down, and may find a hole",
    CursorForgetsLostCas "split | clear 0..2 | unmap 0..2" "a walk that loses a CAS loads the link again to go down, and may find a hole",
    UnhookWithoutFlush "dirty: unmap 0..2 | write" "a table is unhooked without a flush",
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
    RecoverTakesDirtyAtThaw "dirty: recover | clear 0..2" "a recovery reads Dirty of the small leaves at the thaw",
    SplitByStore "dirty: split | clear 0..1" "a split writes the link by a store, and loses a concurrent change",
    NeighbourCleaned "dirty: clear 0..1 of a large leaf | store to 1" "a split for a part makes the other part clean",
    NeighbourLeftOut "clear 0..1 of a large leaf | clear 1..2 | slow fault" "a split for a part leaves a hole in place of the other part",
    LostSplitBelieved "clear 0..1 of a large leaf | clear 1..2 | slow fault" "an invalidation continues in its new table although its CAS failed to link it",
    AgeByStore "dirty: age | clear 0..1" "a pass clears Accessed by a store, and loses a concurrent change",
    DirtyReadBeforeFlush "dirty: unmap 0..2 | write" "Dirty of a dead table is read when it is unhooked",
    DirtyToldAfterHost "dirty: unmap 0..2 | write" "Dirty of a dead table is read when it is collected",
    OnlyTheFlipReloads "zap all | clear 0..1 | slow fault" "a vCPU reloads its root only for the flush of the root change",
    FlipWithoutTicket "zap all | clear 0..1 | slow fault" "the root is replaced without an invalidation",
    FlipFillsZero "zap all | clear 0..1 | slow fault" "the new root is filled with holes of version 0",
    MmioForever "slot deleted, made again | faults" "an MMIO entry is used although newer memslots were published",
    MmioUnconfirmed "slot 1 grows to 1..3 | faults on MMIO" "an MMIO entry is installed without a check of the active set",
    MmioUnlooked "slot 0..1 grows to 0..2 | faults on MMIO, in no table" "a hole that is newer than the stamp becomes an MMIO entry",
    SlotsEndBeforeGrace "slot to other pages | clear of the old | clear of the new, fault | slow fault" "a memslot transaction ends while readers still use the old slots",
    YieldKeepsSlots "slot to other pages, clear of the new, fault | clear of the old that yields | slow fault" "a walk that yielded continues with the old slots",
    ToldUnannounced "change 0 | clear 1..2 by host address | slow fault on 0" "the host reports changed pages in a range that was not announced",
    ToldHoleNotNumbered "change 0..2 | slow fault on 0, in an empty table" "a reported change of a page does not number the hole",
    ReplacedWithoutFlush "change 0 | slow fault on 0 | fault on 1" "a leaf is replaced without a flush",
    ReplacedWritable "change 0 | slow fault on 0 | fault on 1" "a leaf is replaced by a writable one",
    UnlockedBeforeFlush "change 0 | write to 0 | fault on 0" "the copy of a share can be written before the old page is flushed",
    // Tracked stores.
    WatchUnasked "tracked: upgrade | track 0..1" "a fault does not check after its stamp whether stores to the frame are tracked",
    WatchAskedFirst "tracked: store to an empty table | track 0..1 | load" "a fault checks before its stamp whether stores to the frame are tracked",
    RecoverUnwatched "tracked: recover | track 0..1" "a table becomes a large leaf although stores to one of its frames are tracked",
    // Held frames.
    HeldUnconfirmed "held: hold 0 | clear 0..1" "a hold asks the host without a check of the active set",
    HeldTakenMissed "held: hold 0 | clear 0..1" "a hold stores the host's answer although an invalidation took the page back in between",
    HeldPublishedLate "held: hold 0 | clear 0..1" "a hold publishes which page it holds after the host has answered",
    HeldKept "held: hold 0, hold 0 | clear 0..1" "an invalidation does not take a held frame back",
    HeldLookedFirst "held: hold 0, hold 0 | clear 0..1" "a use of a held frame checks that the frame is valid before it announces itself",
    HeldUnwaited "held: hold 0, hold 0 | clear 0..1" "an invalidation does not wait for the use of a frame that it takes back",
    HeldUnflushed "held: interrupts: hold 0 for hardware | clear 0..1, in an empty table" "taking back a frame that hardware uses owes a flush only if a leaf maps it",
    HeldUnadopted "held: kicks: clear 0..1 | clear 0..1, in an empty table" "an invalidation that finds a held frame taken back owes nothing",
    HeldBroadcast "broadcast: held: kicks: clear 0..1, in an empty table" "the flush of a held frame is broadcast, and hardware keeps the frame",
    HeldBeforeEntry "held: interrupts: hold 0 for hardware | clear 0..1, in an empty table" "a vCPU reads a held frame for hardware before it is marked as in the guest",
    // Slots.
    CellsNotWaitedFor "cells: slots made, made | faults" "a version is written where a reader reads an older one",
    PublishedBeforeZap "slot withdrawn | clear by host address | slow fault" "a slot is removed before its pages are zapped",
    SlotsUnannounced "slot withdrawn | clear by host address | slow fault" "slots change without an invalidation of their frames",
    ConvertedUncovered "private: 0 becomes private, and shared again | clear of the shared page | slow fault" "a frame becomes private after its invalidation has ended",
    CopiedUnsettled "park 0 | copy 0" "a page is copied before the flush that another change of it owes",
    // A primary MMU.
    MappingBeforeLock "primary: munmap | store, in no table" "a fault reads the mapping before it takes the page lock",
    VersionNotOutlasted "primary: munmap | store, in no table" "a change edits entries beside faults that use the old version",
    RangeNotKept "primary: munmap | mmap, store" "another thread may map a range while munmap empties its entries",
    ForkUnshown "primary: fork | store to 0, to 1" "faults continue while a fork copies private mappings",
    VersionFreedEarly "primary: munmap | store elsewhere, in no table" "the replaced parts of a version are freed after only the page locks of the range were free",
    FreedBeforeTlb "primary: munmap | store, store" "munmap frees a frame to which a vCPU can still store",
    ProtectedBeforeTlb "primary: mprotect | store, store" "mprotect ends while a vCPU can still store",
    EvictedBeforeTlb "primary: evict | store, store" "a page is written to swap while a vCPU can still store to it",
    LeavingTwice "primary: evict, host's write | evict | load" "two threads take the same page to swap at once",
    ShareOverwritten "primary: fork, evict child | store" "a page that is in the swap cache is written in place",
    ForkedBeforeTlb "primary: fork | store to 0, to 1" "a fork ends while a vCPU can still store to shared pages",
    // Hosts that share a store.
    FleetUnconditional "fleet: upload | upload | collect" "a host writes the catalog unconditionally",
    FleetNameReused "fleet: upload, upload | remove | collect" "a chunk that was deleted has the same name when it is written again",
    FleetFloorIgnored "fleet: upload | upload | collect" "a collection deletes objects of uploads under way",
    FleetRetiredIgnored "fleet: upload | remove | collect" "a collection deletes chunks of a removed template on which an upload relies",
    FleetGivenUpPublished "fleet: stalled: upload | remove, upload of it | collect" "an upload that a collection gave up becomes a template",
    FleetPinnedBlindly "fleet: open, close | remove | collect" "a host that has pinned a template does not check that it still exists",
    FleetLeasesUnread "fleet: open, close | remove | collect" "a collection reads no lease",
    FleetLeasesReadFirst "fleet: open, close | remove | collect" "a collection reads the leases before the list of templates",
    FleetMissingPassed "fleet: upload | remove, collect | collect" "a collection continues although another one has deleted a manifest of the catalog",
    FleetOwnClock "fleet: in time: open, close | remove, collect" "a collection measures the age of leases by its own clock, which is ahead",
    FleetImpatient "fleet: in time: open, close | remove, collect" "a lease has ended before a slow host renews it",
    FleetLeaseRevived "fleet: stalled: open, close, open, close | remove | collect" "a host that stalled renews its lease after the lease has ended",
    FleetManifestByContent "fleet: stalled: upload | remove, upload of it | collect" "manifests that list the same content under different names have one name",
    FleetUploadKept "fleet: stalled: upload | collect" "an upload of a dead host stays in the catalog",
    // The daemon of the pager.
    DaemonLockstep "daemon: a burst: two guests, hostile" "keeper and worker wait for room in their queues, the worker with its state locked",
    DaemonResetIsEnd "daemon: two guests | kill of the worker, twice" "a receiver takes the error of a reset for the end of the messages",
    DaemonKeepLate "daemon: two guests | kill of the worker, twice" "a worker reads a guest's first event before the keeper has its journal",
    DaemonHandshakeTaken "daemon: two guests | kill of the worker, twice" "a worker takes the handshake out of the socket",
    DaemonNotedAfterSend "daemon: two guests | kill of both in turn" "a worker sends a change, then notes it in its copy",
    DaemonChangesFirst "daemon: two guests | kill of both in turn" "a worker sends changes to the next keeper before it has sent its copy",
    DaemonReadyEarly "daemon: two guests | kill of both in turn" "a worker says that it is ready before it has all guests",
    DaemonTwoWorkers "daemon: two guests | kill of the worker, twice" "the next worker starts while the last one is not dead",
    DaemonVersionUnpinned "daemon: upload, reload | guest | kill of the worker" "a later worker serves a guest with the version of new guests",
    DaemonOpenedOutOfOrder "daemon: upload, reload | guest | kill of the worker" "two openings of a template are told in any order",
    DaemonOneTemplateForAll "daemon: guests of two templates, one wedged | kill of the worker" "a later worker opens all templates before it takes guests",
    DaemonDeadVmmWaits "daemon: guest of a wedged template dies | drain | kill of the worker" "a thread that waits for a template does not see the end of its VMM",
    DaemonClosesInPlace "daemon: a burst: two guests, hostile" "the keeper closes a VMM's descriptors itself",
    DaemonCloseCounted "daemon: a burst: two guests, hostile" "the keeper accepts no VMM while a close of another one waits",
    DaemonAcceptsAhead "daemon: two guests | kill of the keeper, twice" "the keeper accepts guests while messages wait",
    DaemonBacklogDropped "daemon: remove | two guests | kill of the keeper" "a socket closes although VMMs wait in its queue",
    DaemonSocketStolen "daemon: remove | guest | kill of the keeper | another daemon" "a daemon binds the path of another one that lives",
    DaemonPlaceOfPath "daemon: drain | guest | kill of the keeper | another daemon, which replaces" "a keeper that a worker started takes the file at its path for its own",
    DaemonRemovedUnlocked "daemon: drain | guest | kill of the keeper | another daemon, which replaces" "a daemon looks whether a file is its own, and removes it later",
    DaemonAnsweredEarly "daemon: drain | guest | kill of both" "an operator is answered before the worker was sent the change",
    DaemonDrainForgotten "daemon: drain | guest | kill of both" "the next worker is not told that the daemon drains",
    DaemonReloadForgotten "daemon: upload, reload | guest | kill of the worker" "the next worker is not told of a reload under way",
    DaemonSessionReopened "daemon: session of two guests | kill of both" "the next keeper accepts a second guest of a session",
    // The memo of a vCPU.
    SlotChangedStampKept "memo: slot 1 deleted | clear of its page | faults on 0, 1, 1" "a vCPU that looks up another slot keeps the stamp of the old slot",
    TableRemembered "memo: zap all | faults on 0, 1" "a vCPU uses the table that it remembers although the epoch has moved",
    RegionForgotten "memo: unmap 0..2 | clear 1..2 | faults on 0, 1" "a vCPU uses the table that it remembers although the region's word has moved",
    NumberForgotten "memo: unmap 0..2 | clear 1..2 | faults on 0, 1" "a vCPU uses the table that it remembers although N has moved",
    QuietBeside "memo: clear 2..3 | clear 0..1 | faults on 0, 2, 0" "a vCPU treats the VM as quiet beside an active invalidation",
    QuietUndated "memo: zap all | faults on 0, 1" "a vCPU treats the VM as quiet although the epoch has moved since it found its table",
    FrameConfirmedAsTable "memo: clear 1..2 | clear 0..1 | faults on 0, 1" "a vCPU uses the confirmation of one frame for the whole table",
    SlotRemembered "memo: slot 0 to another page | faults on 0" "a vCPU confirms the slot that it remembers although a new version was published",
    // Kicks.
    ModesBeforeNumber "kicks: clear 0..1" "a flusher checks which vCPUs are in the guest before it numbers its flush",
    EnterWithoutCatchUp "kicks: clear 0..1" "a vCPU enters the guest and forgets nothing",
    EnterLooksFirst "kicks: clear 0..1" "a vCPU checks for flushes before it is marked as in the guest",
    KickClearedLate "kicks: clear 0..1, clear 1..2" "a kick is cleared after the generation was read",
    GoUnlooked "interrupts: clear 0..1" "the last step into the guest does not check for a kick",
    LookedBeforeHeld "interrupts: clear 0..1" "the last step into the guest checks for a kick before it holds interrupts",
    InterruptedFirst "interrupts: clear 0..1" "a flusher interrupts a vCPU before it sets the vCPU's kick flag",
    BroadcastBesideFlip "broadcast: zap all | clear 0..1 | slow fault" "a flush is broadcast while a root is being replaced",
    BroadcastToGuests "broadcast: kicks: clear 0..1" "a broadcast reaches only the TLBs of vCPUs that are in the guest",
    KicksAndGoesOn "kicks: clear 0..1" "a flusher kicks and does not wait for the vCPUs",
    RingUnchecked "kicks: clear 0..1, clear 1..2" "a vCPU uses a range of the ring without a check of its number",
    RingShared "kicks: clear 0..1 | clear 1..2" "two flushers write one place of the ring at once",
    RootBeforeCatchUp "kicks: zap all" "a vCPU checks for a new root before it catches up",
    // Logs.
    AnswerOutlived "answers: protect 0 | slow store" "a leaf is upgraded to what the host said before an invalidation that has ended since",
    AnswerOfPart "answers: protect 1 | slow store to 0 of a large leaf" "a large leaf is upgraded by an answer about a part of it, beside an invalidation of another part",
    ArmBeforeTake "by W: harvest | harvest | store" "a harvest arms pages before it takes their marks",
    MarkBeforePermission "by W: harvest twice | store, store" "a fault marks the page before it gives write permission",
    LoadMapsWritable "by W: harvest | clear 0..1, load | store" "a load maps a page writable where writes are logged",
    MarkLookedUpLate "by W: slot moves | store" "a mark goes to the log that the frame has after the permission was given",
    CopyBeforeFlush "by W: harvest | harvest | store" "pages are copied before the flush",
    ArmWithoutFlush "by W: harvest | harvest | store" "a harvest owes no flush",
    LogWithoutFlush "by W: log begins | slow store | clear 0..1" "a log that begins owes no flush",
    LogBeforeGrace "by W: log begins | store to an empty table" "a log is armed while faults that saw no log are under way",
    HarvestBeforeGrace "by W: log begins, marked | harvest | store" "a log that begins marked is harvested while faults that saw no log are under way",
    AskForgetsLog "by W: log begins | store to an empty table" "a fault that slept does not check again whether the slot logs",
    MarksBeforeTables "by D: harvest twice | clear 0..1" "a harvest by D reads the marks before the tables",
    HarvestByStore "by D: harvest twice | clear 0..1" "a harvest clears D by a store, and loses a concurrent change",
    HarvestWithoutGrace "by D: harvest twice | clear 0..1" "a harvest by D does not wait for a thread that has marked a leaf and will zap it",
    HarvestFlushesFirst "by D: harvest twice | clear 0..1" "a harvest by D flushes before it waits for the threads that marked",
    KeptLate "by D: harvest | unmap 0..2 | load" "a leaf is zapped before its D bit is marked",
    UnhookTakesDirty "by D: harvest | unmap 0..2 | load" "a table is unhooked and the D bits of its leaves are lost",
    FlipTakesDirty "by D: harvest | zap all" "the root is replaced and the D bits below it are lost",
    FrozenNotKept "by D: harvest | upgrade of a dirty leaf | clear 0..1" "a dirty leaf is frozen without a mark",
    // Nested guests.
    EntryAfterLeaf "nested: fault | zap 0 | zap 0" "a fault of L2 enters its leaf in the reverse map after it has installed the leaf",
    EntryUnchecked "nested: fault | zap 0 | zap 0" "a fault of L2 does not check the lines again after its entry in the reverse map",
    ShadowUnrechecked "nested: large: T to 1, flush | store | zap 0" "a fault of L2 checks the host's lines again, but not the shadow's",
    ChunkAnswers "nested: fault on nothing | another | zap 0" "a fault of L2 checks a number in the chunk of the reverse map instead of the lines",
    TablesReadFirst "nested: T to 1, flush | fault on nothing" "a fault of L2 reads L1's tables before the shadow's line",
    ShadowFaultUnscanned "nested: fault | zap 0 | zap 0" "a fault of L2 does not check for active invalidations",
    ShadowFillsZero "nested: fault on nothing | zap 0" "a new table of a shadow is filled with holes of version 0",
    ShadowNumberUnchecked "nested: fault on nothing | zap 0" "a fault of L2 fills a hole that is newer than its stamp",
    RowUnfrozen "nested: T to 1, fault | fault | zap 1, spared" "the frame of L1 beside a leaf is written before the entry is frozen",
    RowStored "nested: large: T to 1, flush | store | zap 1, spared" "the frame of L1 beside a leaf is written by a store",
    RowUnowned "nested: large: T to 1, flush | store | zap 1, spared" "a fault exchanges the row without a check that the entry is still frozen",
    WriteWithoutDirty "nested: leaf, D taken, flush, load, store" "a leaf of a shadow is writable although Dirty in L1's table is clear",
    UpgradeUncompared "nested: clean leaf, D taken, flush, store | store" "a leaf of a shadow gets write permission by one CAS",
    RefusedLeafKept "nested: leaf without write, store refused, T to 1, load" "L1 gets a fault, and the leaf that it hit stays",
    RefusedOnce "nested: leaf without write, store refused, T to 1, load | load, as built" "a refused leaf is removed at once, and not again when the vCPU comes back",
    RefusedBesideDebt "nested: leaf without write, store refused, T to 1, load | zap 0" "L1 gets a fault beside an unflushed invalidation, and nothing is flushed when the vCPU comes back",
    WriteUnmarked "nested: logged: store, store | harvest twice" "a fault of L2 gives write permission and does not mark L1's frame",
    ArmForgetsShadows "nested: logged: store, store | harvest twice" "a harvest arms L1's mappings, but not L2's",
    ShadowLogBeforeGrace "nested: log begins | store to nothing" "a log is armed while faults of L2 that saw no log are under way",
    ArmedPassedBy "nested: logged: store | protect 0 | harvest" "a leaf of a shadow that a log has armed counts as one that never allowed stores",
    ShadowDebtUnadopted "nested: leaf, T to 1, fault | zap 0 | zap 0" "an unchanged entry of a shadow beside an unflushed invalidation owes no flush",
    ReachedLate "nested: leaf, T to 1, fault | zap 0 | zap 0" "an invalidation records that it owes a flush of L2's tag only after it has edited the shadow",
    DebtsBySpace "nested: leaf, T to 1, fault | zap 0 | zap 0" "debts are adopted except those of flushes of that shadow",
    ChildHoleKept "nested: fault on nothing | zap 0" "an invalidation does not number the hole of a missing leaf table of a shadow",
    RemovedUncompared "nested: leaf, D taken, flush | store | zap 0" "an entry of the reverse map is removed without a compare of the head",
    RemovedBeforeFlush "nested: leaf, fault | protect 0 | zap 0" "an entry of the reverse map is removed before the flush",
    HeadReadLate "nested: leaf, D taken, flush | store | zap 0" "a flush reads the head of the reverse map after it has removed the leaf",
    FlushRemovesFirst "nested: leaf, T to 1, flush, fault | zap 0" "a flush of L1 removes entries of the reverse map before its own flush of TLBs",
    L1TagOnly "nested: leaf, canonical too, fault | zap 0" "only L1's tag is flushed, not L2's",
    OutsideUnflushed "nested: leaf, out of L2 and back | zap 0" "a flush of L2's tag leaves out the vCPUs that are not in L2",
    HullsMixSpaces "nested: leaf of 1, fault | zap 1" "L2's tag is flushed by frames of L1",
    FlushWithoutBumps "nested: T to 1, flush | fault" "a flush of L1 does not number holes",
    KeptUnaccessed "nested: leaf without write, A taken, flush, load" "a flush of L1 keeps a leaf whose Accessed L1 has cleared",
    FirstEntryUnflushed "nested: leaf, T to 1 | first entry" "a vCPU enters a shadow that is new to it without a flush",
    CoalescedWithOlder "nested: leaf, flush | T to 1, flush" "an earlier flush of L1 serves a later one",
    CoalescedUnwaited "nested: leaf, flush | T to 1, flush" "an unfinished flush of L1 serves another one",
    BroadcastDeferred "nested: leaf, T to 1, broadcast | faults" "a flush that L1 broadcasts waits for each vCPU's next entry",
    RecycledUnflushed "nested: another root and back" "a shadow is given to another root without a flush",
    SlotMovedUnderTables "nested: leaf, fault | slot of T moves" "the memslot of L1's tables moves, and the shadows stay",
    LineUnrechecked "nested: T to 1, flush | fault, as built" "a fault of L2 that has frozen its entry does not check the shadow's line again",
    CheckedBeforeFrozen "nested: T to 1, flush | fault, as built" "a fault of L2 checks the lines again before it freezes its entry",
    FrozenPassedBy "nested: T to 1, flush | fault, as built" "a flush of L1 leaves a frozen entry of a shadow to its fault",
    FrozenTaken "nested: T to 1, flush, back, flush | fault, as built" "a frozen entry of a shadow becomes a hole, and another fault writes the row beside its owner",
    RowAfterLeaf "nested: leaf of 1, T to 0, flush, back, flush | fault, as built" "the row is written after the leaf",
    DropNotedLate "nested: leaf, T to 1, flush, fault | zap 0, as built" "a drop is recorded only after the exchange that removes the leaf",
    DropNotedEarly "nested: leaf, T to 1, broadcast | broadcast, back, as built" "a drop is recorded only before the exchange that removes the leaf",
    ArmUnnoted "nested: logged: leaf, D taken, flush, store | harvest, as built" "a log withdraws write permission from a leaf of a shadow, and records no drop",
    ServedUnforgotten "nested: leaf, flush | T to 1, flush of both, as built" "if another vCPU's flush of L1 serves this one, the vCPU's own TLB is not flushed",
    SettledEarly "nested: leaf, T to 1, broadcast | broadcast, back, as built" "a broadcast that L1 requests reports completion before all TLBs have forgotten",
    UnlinkUnnoted "nested: leaf, T to 1, flush, load | its table goes, as built" "tables of a shadow are unlinked, and no drop is recorded",
    ReclaimUnannounced "nested: faults near the last | zap 0 | its table goes, as built" "tables of a shadow are unlinked, and its line does not move",
    LineReadLate "nested: faults near the last | zap 0 | its table goes, as built" "a fault of L2 reads the shadow's line after the walk to the table that it will remember",
    NearUnchecked "nested: faults near the last | zap 0 | its table goes, as built" "a fault of L2 uses the table that it remembers without a check of the line",
    FreedUnflushed "nested: leaf, load | store | its table goes, as built" "tables of a shadow are freed before TLBs have forgotten the links to them",
    FreedBesideFault "nested: leaf, fault | zap 0 | its table goes, as built" "tables of a shadow are freed while a fault is in them",
    FreedBesideWalk "nested: leaf, fault | zap 0 | its table goes, as built" "tables of a shadow are freed while an invalidation is in them",
    HintGoesWithPart "nested parts: part 0 moves, part 1 moves" "a part of a large page of L1 moves, and the hint of the whole page is removed",
    PartByStart "nested parts: part 1 moves" "a part of a large page of L1 moves, and the leaf at the beginning of the page is removed",
    WideUnchecked "nested parts: nothing, fault | part 1 moves" "a fault that maps a large page checks its own part's line, not N",
    SplitUnfrozen "nested parts: T to 1 and back, flush | part 1 of 0 moves | part 0 of 0 moves" "a large leaf is split by one exchange, with the row that was read before",
    SplitUnnoted "nested parts: T to 1, flush | part 1 moves" "a large leaf is frozen to be split, and no drop is recorded",
    DroppedWithEntries "nested: leaf, T to 1, flush, fault | zap 0, dropped" "a flush that drops a shadow's tables drops its entries in the reverse map",
}
