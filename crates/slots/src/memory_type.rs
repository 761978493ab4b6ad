//! The memory types that a memslot, a host page and a leaf can have.

/// How processors may cache a page and order accesses to it. Each type is narrower than the one before it.
///
/// The architecture decides how a guest's own attributes combine with it. `slat::table::formats` documents how
/// each type is encoded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub enum MemoryType {
    /// Ordinary memory: cached.
    #[default]
    WriteBack,
    /// Not cached; stores may be combined, loads may be made ahead: a frame buffer.
    WriteCombining,
    /// Not cached, no speculative loads; the guest may choose to combine stores.
    Uncached,
    /// Registers of a device: not cached, each access separate. The guest cannot change this if hardware
    /// allows.
    Device,
}

impl MemoryType {
    /// Every type, in order.
    pub const ALL: [Self; 4] = [Self::WriteBack, Self::WriteCombining, Self::Uncached, Self::Device];

    /// Returns the type as a number below four.
    #[inline(always)]
    pub const fn bits(self) -> u64 {
        self as u64
    }

    /// Returns the type from the lowest two bits of [`bits`](Self::bits).
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
