//! References to copies: numbers in page-table entries, and values elsewhere.

/// Number of a copy. An entry with this number has a reference to the copy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct SwapEntry(pub(crate) u32);

impl SwapEntry {
    /// The copy of every zero page.
    pub(super) const ZERO: Self = Self(0);
}

/// The LRU's record of an evicted page, in the page's entry: when it was evicted, and how it was used. Swap does
/// not interpret it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shadow(u32);

impl Shadow {
    /// Number of bits.
    pub(crate) const BITS: u32 = 18;

    /// Keeps the lowest [`BITS`](Self::BITS) of `bits`.
    pub(crate) const fn new(bits: u32) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    pub(crate) const fn bits(self) -> u32 {
        self.0
    }
}
