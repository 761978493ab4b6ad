//! Errors of dirty logs. After an error nothing has been cleared.

use crate::slots::SlotId;

/// Why a call on a dirty log failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DirtyError {
    /// A slot id at or above the VM's limit (`EINVAL`).
    Id {
        /// The requested slot.
        id: SlotId,
        /// The VM's limit, exclusive.
        limit: u32,
    },
    /// There is no such slot (`ENOENT`).
    NoSuchSlot(SlotId),
    /// The slot does not log (`ENOENT`).
    NotLogged(SlotId),
    /// A range that does not begin at a multiple of 64 pages (`EINVAL`).
    Misaligned {
        /// The slot.
        id: SlotId,
        /// The first page.
        first: u64,
    },
    /// A range that reaches out of the slot, or neither ends it nor has a multiple of 64 pages (`EINVAL`).
    Range {
        /// The slot.
        id: SlotId,
        /// The first page.
        first: u64,
        /// Number of pages.
        pages: u64,
        /// Number of pages in the slot.
        of: u64,
    },
    /// Fewer words than the pages need (`EINVAL`).
    Short {
        /// Words given.
        words: usize,
        /// Words needed.
        needed: u64,
    },
    /// The VM has rings: call [`harvest_all`](crate::guest_space::GuestSpace::harvest_all), which empties them (`ENXIO`).
    RingOnly,
    /// The VM has no rings (`ENXIO`).
    NoRing,
    /// A ring size that is no power of two, or below 4096 bytes (`EINVAL`).
    RingSize(u32),
    /// A ring size above 1 MiB (`E2BIG`).
    RingTooLarge(u32),
    /// The VM was built without this vCPU (`EINVAL`).
    NoSuchVcpu(crate::VcpuId),
    /// A change of the ring size or of [`Track`](super::Track), which are fixed (`EINVAL`).
    Fixed,
    /// Rings were requested while a thread holds a vCPU (`EINVAL`).
    VcpuTaken,
    /// No memory to note the dirty pages (`ENOMEM`).
    NoMemory,
}

impl From<crate::NoMemory> for DirtyError {
    fn from(_: crate::NoMemory) -> Self {
        Self::NoMemory
    }
}

errors! { DirtyError, errno:
    Self::Id { id, limit } => 22, "memslot {id}: ids are below {limit}";
    Self::NoSuchSlot(id) => 2, "memslot {id}: there is none of this id";
    Self::NotLogged(id) => 2, "memslot {id}: it does not log writes";
    Self::Misaligned { id, first } => 22, "memslot {id}: page {first} is no multiple of 64";
    Self::Range { id, first, pages, of } => 22,
        "memslot {id}: {pages} pages from page {first} on are neither whole 64s of its {of} nor its end";
    Self::Short { words, needed } => 22, "{words} words for bits that need {needed}";
    Self::RingOnly => 6, "this VM logs into rings: harvest them";
    Self::NoRing => 6, "this VM has no dirty rings";
    Self::RingSize(bytes) => 22, "a dirty ring of {bytes} bytes: it must be a power of two, 4096 at least";
    Self::RingTooLarge(bytes) => 7, "a dirty ring of {bytes} bytes: 1048576 are the most";
    Self::NoSuchVcpu(vcpu) => 22, "vCPU {}: this VM has fewer", vcpu.0;
    Self::Fixed => 22, "this VM has its rings, and its way to notice stores, for life";
    Self::VcpuTaken => 22, "dirty rings cannot begin while a thread has a vCPU: drop the vCPUs first";
    Self::NoMemory => 12, "no memory to note what is dirty";
}
