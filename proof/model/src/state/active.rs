//! The active set, and the lines on which invalidations are announced.

use super::pages::Span;

/// Most threads of a scenario.
pub const THREADS: usize = 8;

/// One invalidation in the active set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Slot {
    pub(crate) active: bool,
    pub(crate) unflushed: bool,
    /// The number that it began with, and the one that it has now.
    pub(crate) first: u8,
    pub(crate) last: u8,
    pub(crate) gfns: Span,
    pub(crate) hvas: Span,
    /// The lines on which it is or will be listed: a bit for each region, [`EPOCH`] for the epoch.
    pub(crate) lines: u8,
}

/// The word N. Only invalidations read it and write it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Numbers {
    /// The newest number.
    pub newest: u8,
    /// Number of active invalidations.
    pub count: u8,
}

/// The line of a region, or the epoch's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Line {
    /// The word: the newest number announced here.
    pub newest: u8,
    /// The places of the active set that are listed here, a bit each.
    pub listed: u8,
}

/// The line on which wide invalidations are announced. Lines 0 and 1 are those of the regions.
pub(crate) const EPOCH: usize = 2;

/// The epoch, in [`Slot::lines`].
pub(crate) const WIDE: u8 = 1 << EPOCH;
