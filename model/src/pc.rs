//! Where threads stand.

/// What a thread does next: named after the function of the engine that does it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[allow(missing_docs, reason = "named after functions")]
pub enum Pc {
    #[default]
    Start,
    // notify::active
    BeginSlot,
    BeginNumber,
    WidenSlot,
    WidenNumber,
    Stamp,
    ConfirmCovered,
    ConfirmUnmoved,
    Flushed,
    EndCount,
    EndSlot,
    // notify::invalidation, table::cursor
    Walk,
    Tell,
    Told,
    FindParts,
    EditEntry,
    KeepDirty,
    EditKept,
    EditCas,
    CursorNext,
    Rest,
    // tlb, host
    ShootDown(u8),
    Number,
    RingClaim,
    RingWrite,
    RingNumber,
    Kick(u8),
    Await(u8),
    HostChanges,
    // fault
    Descend,
    MmioStillValid,
    FindSlot,
    FindIn,
    Lookup,
    Resolve,
    LargeCovered,
    LargeUnmoved,
    LinkDown,
    Install,
    InstallMmio,
    GiveBack,
    SplitDown,
    Freeze,
    Thaw,
    LogStore,
    // split, age, zap_all, slots
    SplitLink,
    AgeStore,
    Flip,
    MakeRoom,
    RoomMade,
    WriteCell,
    Publish,
    Synchronize,
    Synchronized,
    // dirty
    Tables,
    ClearDirty,
    TakeMarks,
    ArmEntry,
    Copy,
}
