//! `Alone`: what a fault knows of a page that no invalidation covered.

use crate::notify::active::Epoch;
use crate::slots::Slot;
use crate::table::entry::Word;

/// The slot of a page over which no invalidation was active, with the announcements that were read for that. While two of
/// them are equal, no invalidation of the page was announced in between (as in [`memo`](super::memo)).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Alone {
    pub(super) slot: Slot,
    pub(super) epoch: Epoch,
    pub(super) newest: Word,
}
