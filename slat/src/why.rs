//! Why the primary MMU is about to change a range. The reason decides how little has to be done
//! ([`crate::notify::plan`]); KVM is told the same reasons and ignores them (the NUMA protection and change-pte series).

named! {
    /// The reason for an invalidation.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum Why {
        /// The mapping goes away: munmap. Nothing will come back at this address soon.
        Unmap "unmap",
        /// The mapping moves to another address: mremap, for the old range.
        Remap "remap",
        /// The address space itself goes away, or this listener does: what `mmu_notifier` calls release.
        Exit "exit",
        /// The pages go away, the mapping stays: `MADV_DONTNEED`.
        Clear "clear",
        /// A page moves to another frame with its contents: migration, compaction.
        Migrate "migrate",
        /// Some pages of the range may go to swap: they come back with their contents, later, elsewhere.
        Reclaim "reclaim",
        /// A mapping loses write permission; pages and other permissions stay: mprotect to read-only.
        Protect "protect",
        /// Pages lose write permission, one by one or many: fork, cleaning before write-back, the first step of a merge.
        WriteProtect "write-protect",
        /// As [`WriteProtect`](Self::WriteProtect), to learn which pages are written from now on (`clear_refs`).
        SoftDirty "soft-dirty",
        /// Some pages of the range may become inaccessible, to learn who uses them: NUMA balancing (the NUMA protection series).
        Numa "numa",
        /// Some pages of the range may be replaced by others with the same contents, or change permission: a merge, a break
        /// of copy-on-write (the change-pte series).
        ChangePte "change-pte",
        /// A memslot is deleted or moved: nothing may be mapped through it any more.
        Slot "slot",
    }
}

impl Why {
    /// Whether the range's table pages are worth freeing: only where no fault will need them again soon.
    /// Mundane reasons keep the structure, so that the next fault is one CAS.
    pub const fn frees_tables(self) -> bool {
        matches!(self, Self::Unmap | Self::Remap | Self::Exit | Self::Slot)
    }

    /// Whether nothing happens when the invalidation begins: the range says only where something may change, and each
    /// page that does is told by [`Pages::changed`](crate::notify::Pages::changed).
    pub const fn page_by_page(self) -> bool {
        matches!(self, Self::Reclaim | Self::Numa | Self::ChangePte)
    }
}

/// What took translations away.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// A change in the primary MMU or of a memslot, for this reason, as the VM took it; or the engine itself, in the way that
    /// it would for this reason: tables over the budget are an [unmap](Why::Unmap), a large page made of small ones is a
    /// [migration](Why::Migrate).
    Change(Why),
    /// A log of writes took permission, or Dirty bits, to learn of the next write.
    DirtyLog,
    /// Permission to write was taken with [`Vm::write_protect`](crate::Vm::write_protect).
    WriteProtect,
    /// Accessed bits were cleared for a caller that would not wait for TLBs to forget by themselves.
    Aging,
}

impl Cause {
    /// How many there are.
    pub const COUNT: usize = Why::ALL.len() + 3;

    /// Every cause: changes first, in the order of [`Why::ALL`].
    pub const ALL: [Self; Self::COUNT] = {
        let mut all = [Self::Aging; Self::COUNT];
        let mut index = 0;
        while index < Why::ALL.len() {
            all[index] = Self::Change(Why::ALL[index]);
            index += 1;
        }
        all[index] = Self::DirtyLog;
        all[index + 1] = Self::WriteProtect;
        all
    };

    /// Its name: that of the reason for a change.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Change(why) => why.name(),
            Self::DirtyLog => "dirty-log",
            Self::WriteProtect => "write-protect-vm",
            Self::Aging => "aging",
        }
    }

    /// Where it is in [`ALL`](Self::ALL).
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Change(why) => why as usize,
            Self::DirtyLog => Why::ALL.len(),
            Self::WriteProtect => Why::ALL.len() + 1,
            Self::Aging => Why::ALL.len() + 2,
        }
    }
}
