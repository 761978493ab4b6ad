//! Why a dirty log cannot be asked, or not like that. Nothing has been cleared then.

use crate::slots::SlotId;

/// See the module's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DirtyError {
    /// Ids are below this (`EINVAL`).
    Id {
        /// The slot that was asked for.
        id: SlotId,
        /// The VM's limit.
        limit: u32,
    },
    /// There is no such slot (`ENOENT`).
    NoSuchSlot(SlotId),
    /// The slot does not log (`ENOENT`).
    NotLogged(SlotId),
    /// A range that begins at no multiple of 64 pages (`EINVAL`).
    Misaligned {
        /// The slot.
        id: SlotId,
        /// The first page.
        first: u64,
    },
    /// A range whose pages are no multiple of 64 and do not end the slot, or that reaches out of it (`EINVAL`).
    Range {
        /// The slot.
        id: SlotId,
        /// The first page.
        first: u64,
        /// How many.
        pages: u64,
        /// How many the slot has.
        of: u64,
    },
    /// Fewer words than the pages have bits for (`EINVAL`).
    Short {
        /// The words that there are.
        words: usize,
        /// The words that are needed.
        needed: u64,
    },
    /// A VM with rings: ask [`harvest_all`](crate::memslots::Memslots::harvest_all), which empties them (`ENXIO`).
    RingOnly,
    /// A VM without rings (`ENXIO`).
    NoRing,
    /// A ring has a power of two of bytes, at least 4096 (`EINVAL`).
    RingSize(u32),
    /// A ring has at most 1 MiB (`E2BIG`).
    RingTooLarge(u32),
    /// The VM was built without this vCPU (`EINVAL`).
    NoSuchVcpu(crate::VcpuId),
    /// A VM's rings, and how its stores are noticed, do not change (`EINVAL`).
    Fixed,
    /// Rings come while no thread has a vCPU (`EINVAL`).
    VcpuTaken,
    /// No memory to note what would have been taken (`ENOMEM`).
    NoMemory,
}

impl DirtyError {
    /// As KVM numbers it.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::NoSuchSlot(_) | Self::NotLogged(_) => 2,
            Self::RingOnly | Self::NoRing => 6,
            Self::RingTooLarge(_) => 7,
            Self::NoMemory => 12,
            Self::Id { .. }
            | Self::Misaligned { .. }
            | Self::Range { .. }
            | Self::Short { .. }
            | Self::RingSize(_)
            | Self::NoSuchVcpu(_)
            | Self::Fixed
            | Self::VcpuTaken => 22,
        }
    }
}

errors! { DirtyError:
    Self::Id { id, limit } => "memslot {id}: ids are below {limit}";
    Self::NoSuchSlot(id) => "memslot {id}: there is none of this id";
    Self::NotLogged(id) => "memslot {id}: it does not log writes";
    Self::Misaligned { id, first } => "memslot {id}: page {first} is no multiple of 64";
    Self::Range { id, first, pages, of } =>
        "memslot {id}: {pages} pages from page {first} on are neither whole 64s of its {of} nor its end";
    Self::Short { words, needed } => "{words} words for bits that need {needed}";
    Self::RingOnly => "this VM logs into rings: harvest them";
    Self::NoRing => "this VM has no dirty rings";
    Self::RingSize(bytes) => "a dirty ring of {bytes} bytes: it must be a power of two, 4096 at least";
    Self::RingTooLarge(bytes) => "a dirty ring of {bytes} bytes: 1048576 are the most";
    Self::NoSuchVcpu(vcpu) => "vCPU {}: this VM has fewer", vcpu.0;
    Self::Fixed => "this VM has its rings, and its way to notice stores, for life";
    Self::VcpuTaken => "dirty rings cannot begin while a thread has a vCPU: drop the vCPUs first";
    Self::NoMemory => "no memory to note what is dirty";
}
