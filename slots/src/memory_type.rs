//! The memory types that a memslot, a host page and a leaf can have.

/// How processors may cache a page and order accesses to it. Each type is narrower than the one before it.
///
/// What a guest's own attributes may add to it is the architecture's business. `slat::table::formats` says how each type is
/// encoded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub enum MemoryType {
    /// Ordinary memory: cached.
    #[default]
    WriteBack,
    /// Not cached; stores may be combined, loads may be made ahead: a frame buffer.
    WriteCombining,
    /// Not cached, no loads ahead of their time; the guest may choose to combine stores.
    Uncached,
    /// Registers of a device: not cached, each access as it is written. The guest has no say in it, where hardware allows that.
    Device,
}

impl MemoryType {
    /// Every type, in order.
    pub const ALL: [Self; 4] = [Self::WriteBack, Self::WriteCombining, Self::Uncached, Self::Device];

    /// The type as a number below four, for a word that keeps it.
    #[inline(always)]
    pub const fn bits(self) -> u64 {
        self as u64
    }

    /// The type from the lowest two of [`bits`](Self::bits).
    #[inline(always)]
    pub const fn from_bits(bits: u64) -> Self {
        match bits & 0b11 {
            0 => Self::WriteBack,
            1 => Self::WriteCombining,
            2 => Self::Uncached,
            _ => Self::Device,
        }
    }
}
