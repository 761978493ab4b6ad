//! References to copies: numbers in entries of page tables, and values elsewhere.

use super::Swap;
use std::mem::ManuallyDrop;

/// The number of a copy. An entry that says one has a reference to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct SwapEntry(pub(crate) u32);

impl SwapEntry {
    /// The copy of every page of zeroes.
    pub(super) const ZERO: Self = Self(0);
}

/// What an entry remembers of the page that was there, for whoever decides what goes: when it went, how it was used.
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

/// A reference to a copy. Dropping it gives it back.
#[derive(Debug)]
#[must_use]
pub(crate) struct HeldCopy<'a> {
    swap: &'a Swap,
    entry: SwapEntry,
}

impl<'a> HeldCopy<'a> {
    /// The caller hands over a reference that it has.
    pub(super) fn new(swap: &'a Swap, entry: SwapEntry) -> Self {
        Self { swap, entry }
    }

    pub(crate) fn entry(&self) -> SwapEntry {
        self.entry
    }

    /// Where it lies.
    pub(crate) fn swap(&self) -> &'a Swap {
        self.swap
    }

    /// The reference lives on in an entry of a page table, which gives it back some day.
    pub(crate) fn keep(self) -> SwapEntry {
        ManuallyDrop::new(self).entry
    }
}

impl Drop for HeldCopy<'_> {
    fn drop(&mut self) {
        self.swap.put(self.entry);
    }
}
