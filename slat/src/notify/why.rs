//! Why the primary MMU is about to change a range. The reason decides how little has to be done
//! ([`super::plan`]); KVM is told the same reasons and ignores them (seeds 002 and 004).

/// The reason for an invalidation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Why {
    /// The mapping goes away: munmap, or exit. Nothing will come back at this address soon.
    Unmap,
    /// The mapping moves to another address: mremap, for the old range.
    Remap,
    /// The pages go away, the mapping stays: `MADV_DONTNEED`, copy-on-write (the old page), reclaim.
    Clear,
    /// A page moves to another frame with its contents: migration, compaction.
    Migrate,
    /// Write permission is withdrawn; pages and other permissions stay: mprotect to read-only, fork.
    Protect,
    /// A memslot is deleted or moved: nothing may be mapped through it any more.
    Slot,
    /// A memslot logs writes from now on: the next store to each page must fault.
    Log,
}

impl Why {
    /// Every reason, in the order of the table in [`super::plan`].
    pub const ALL: [Self; 7] =
        [Self::Unmap, Self::Remap, Self::Clear, Self::Migrate, Self::Protect, Self::Slot, Self::Log];

    /// Whether the range's table pages are worth freeing: only where no fault will need them again soon.
    /// Mundane reasons keep the structure, so that the next fault is one CAS.
    pub const fn frees_tables(self) -> bool {
        matches!(self, Self::Unmap | Self::Remap | Self::Slot)
    }
}
