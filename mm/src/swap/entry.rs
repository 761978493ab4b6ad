//! References to copies: numbers in entries of page tables, and values elsewhere.

/// The number of a copy. An entry that says one has a reference to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct SwapEntry(pub(crate) u32);

impl SwapEntry {
    /// The copy of every page of zeroes.
    pub(super) const ZERO: Self = Self(0);
}

/// What an entry remembers of the page that was there, for the eviction that decides what goes: when it went, how it was used.
/// Swap does not look into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shadow(u32);

impl Shadow {
    /// Bits that there are room for.
    pub(crate) const BITS: u32 = 18;

    /// The lowest [`BITS`](Self::BITS) of `bits`.
    pub(crate) const fn new(bits: u32) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    pub(crate) const fn bits(self) -> u32 {
        self.0
    }
}
