//! Why the primary MMU is about to change a range. The reason decides how much the VM must do
//! ([`crate::notify::plan`]). KVM gets the same reasons and ignores them (the NUMA protection and change-pte series).

named! {
    /// The reason of an invalidation: a [`Why`], a [`PageWhy`], or the engine's own.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum Reason {
        /// The mapping is removed: munmap. Nothing returns at this address soon.
        Unmap "unmap",
        /// The mapping moves to another address: mremap, for the old range.
        Remap "remap",
        /// The address space or this listener ends: `release` of `mmu_notifier`.
        Exit "exit",
        /// The pages are freed, and the mapping stays: `MADV_DONTNEED`.
        Clear "clear",
        /// A page moves to another frame with its contents: migration, compaction.
        Migrate "migrate",
        /// Some pages of the range may be swapped out. They return later, with their contents, in other frames.
        Reclaim "reclaim",
        /// A mapping loses write permission, and keeps its pages and other permissions: mprotect to read-only.
        Protect "protect",
        /// Pages lose write permission, one or many: fork, cleaning before write-back, the first step of a merge.
        WriteProtect "write-protect",
        /// Like [`WriteProtect`](Self::WriteProtect), to track which pages are written from now on (`clear_refs`).
        SoftDirty "soft-dirty",
        /// Some pages of the range may become inaccessible, to detect their users: NUMA balancing (the NUMA protection
        /// series).
        Numa "numa",
        /// Some pages of the range may be replaced by others with the same contents, or change permission: a merge, a
        /// break of copy-on-write (the change-pte series).
        ChangePte "change-pte",
        /// A memslot is deleted or moved: nothing may be mapped through it any more.
        Slot "slot",
    }
}

/// Reasons by which all of a range changes: see [`Vm::change`](crate::Vm::change).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Why {
    /// See [`Reason::Unmap`].
    Unmap,
    /// See [`Reason::Remap`].
    Remap,
    /// See [`Reason::Exit`].
    Exit,
    /// See [`Reason::Clear`].
    Clear,
    /// See [`Reason::Migrate`].
    Migrate,
    /// See [`Reason::Protect`].
    Protect,
    /// See [`Reason::WriteProtect`].
    WriteProtect,
    /// See [`Reason::SoftDirty`].
    SoftDirty,
}

/// Reasons by which some pages of a range change, each of which the host tells: see
/// [`Vm::change_pages`](crate::Vm::change_pages).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PageWhy {
    /// See [`Reason::Reclaim`].
    Reclaim,
    /// See [`Reason::Numa`].
    Numa,
    /// See [`Reason::ChangePte`].
    ChangePte,
}

impl From<Why> for Reason {
    fn from(why: Why) -> Self {
        match why {
            Why::Unmap => Self::Unmap,
            Why::Remap => Self::Remap,
            Why::Exit => Self::Exit,
            Why::Clear => Self::Clear,
            Why::Migrate => Self::Migrate,
            Why::Protect => Self::Protect,
            Why::WriteProtect => Self::WriteProtect,
            Why::SoftDirty => Self::SoftDirty,
        }
    }
}

impl From<PageWhy> for Reason {
    fn from(why: PageWhy) -> Self {
        match why {
            PageWhy::Reclaim => Self::Reclaim,
            PageWhy::Numa => Self::Numa,
            PageWhy::ChangePte => Self::ChangePte,
        }
    }
}

impl Reason {
    /// Whether the invalidation also frees table pages: only if no fault needs them soon. For other reasons tables
    /// stay, so that the next fault is one CAS.
    pub const fn frees_tables(self) -> bool {
        matches!(self, Self::Unmap | Self::Remap | Self::Exit | Self::Slot)
    }

    /// Whether the begin of an [event](crate::notify::SecondaryMmu::around) with this reason changes nothing. Its range
    /// then only says where pages may change, and the host reports each changed page by
    /// [`Pages::changed`](crate::notify::Pages::changed).
    ///
    /// For [`Invalidation::apply`](crate::Invalidation::apply) every page of the range counts as changed, whatever the
    /// reason.
    pub const fn page_by_page(self) -> bool {
        matches!(self, Self::Reclaim | Self::Numa | Self::ChangePte)
    }
}

/// The reason of a flush.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// A change in the primary MMU or of a memslot, for this reason as the VM applied it. The engine itself uses the
    /// reasons, too: taking back tables over the budget is an [unmap](Reason::Unmap), and recovering a large page is a
    /// [migration](Reason::Migrate).
    Change(Reason),
    /// A dirty log took write permission or Dirty bits, to detect the next write.
    DirtyLog,
    /// [`GuestSpace::write_protect`](crate::GuestSpace::write_protect) took write permission.
    WriteProtect,
    /// An aging pass cleared Accessed bits for a caller that needs the flush at once.
    Aging,
}

impl Cause {
    /// Number of causes.
    pub const COUNT: usize = Reason::ALL.len() + 3;

    /// All causes: changes first, in the order of [`Reason::ALL`].
    pub const ALL: [Self; Self::COUNT] = {
        let mut all = [Self::Aging; Self::COUNT];
        let mut index = 0;
        while index < Reason::ALL.len() {
            all[index] = Self::Change(Reason::ALL[index]);
            index += 1;
        }
        all[index] = Self::DirtyLog;
        all[index + 1] = Self::WriteProtect;
        all
    };

    /// The cause's name; for a change, that of its reason.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Change(why) => why.name(),
            Self::DirtyLog => "dirty-log",
            Self::WriteProtect => "write-protect-vm",
            Self::Aging => "aging",
        }
    }

    /// The index in [`ALL`](Self::ALL).
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Change(why) => why as usize,
            Self::DirtyLog => Reason::ALL.len(),
            Self::WriteProtect => Reason::ALL.len() + 1,
            Self::Aging => Reason::ALL.len() + 2,
        }
    }
}
