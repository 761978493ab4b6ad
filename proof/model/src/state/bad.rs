//! The violations of properties that a check can find.

/// A violated property.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Bad {
    /// A vCPU can load from a frame that the host has taken back.
    StaleLoad,
    /// A vCPU can store where the host allows no stores any more.
    StaleStore,
    /// A vCPU can reach memory that its slot has no longer.
    StaleSlot,
    /// A vCPU can store to a frame whose stores are tracked.
    StoreUntracked,
    /// A held frame is used that the host has taken back, or that is not the slot's any more.
    StaleHeld,
    /// An access to a slot was treated as MMIO.
    FalseMmio,
    /// A thread or a vCPU reaches a table page that was given back.
    FreedTable,
    /// A hole was replaced by an older one.
    VersionFell,
    /// A vCPU in L2 can use what L1 has flushed, or never said.
    StaleTables,
    /// The host discarded a written page as clean.
    DirtyLost,
    /// At the end, a page was written since its copy, and no harvest will report it.
    StoreLost,
    /// A page had been written when a harvest began, and the harvest did not report it.
    StoreUntold,
    /// A page was copied, and a vCPU can still store to the old frame.
    StoreAfterCopy,
    /// A look-up read a version of the slots in whose place another one was being written.
    MixedSlots,
    /// A thread waits forever.
    Stuck,
    /// A vCPU can load old contents of a page whose copy is writable.
    OldContents,
    /// At the end, a table page is lost.
    TableLost,
    /// At the end, the count of leaves is wrong.
    LeafLost,
    /// At the end, there is a page without a mapping.
    PageLeft,
    /// A child has a store of a thread, but not the previous one.
    ChildTorn,
    /// A thread reads a version of the mappings that was freed.
    FreedVersion,
    /// A template of a store lacks its manifest or a chunk.
    TemplateBroken,
    /// An object that a host has pinned and serves is gone.
    PinLost,
    /// At the end, collections leave objects that no template has.
    Garbage,
    /// Two workers serve a VMM at the same time.
    ServedTwice,
    /// A guest is served with another version than that with which it began.
    VersionsMixed,
    /// A guest is served from an empty journal although a worker has read its events.
    JournalLost,
    /// An honest VMM has lost its connection, and no line says so.
    GuestLost,
    /// A session's socket serves a second guest.
    SessionTwice,
    /// A daemon has taken a live socket without being asked to.
    SocketStolen,
    /// A daemon has removed the socket of another one.
    SocketDeleted,
    /// An operator was told that something is done, and it is not so any more.
    Undone,
}
