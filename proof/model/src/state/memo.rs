//! The memo of a vCPU.

use super::pages::{Span, region};
use super::shared::Shared;
use super::slots::Version;

/// `Memo`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Memo {
    /// The frames of the slot, and the host page of the first one.
    pub(crate) slot: Span,
    pub(crate) hva: u8,
    /// Number of the version of the slots in which it was found.
    pub(crate) published: u8,
    pub(crate) confirmed: Option<Confirmed>,
    pub(crate) quiet: Option<Quiet>,
}

/// `Quiet`: the number of N while no invalidation was active; the table above the leaf tables; and a leaf table found
/// since, with its first frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Quiet {
    pub(crate) number: u8,
    pub(crate) parent: u8,
    pub(crate) table: u8,
    pub(crate) first: u8,
}

/// `Near`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Confirmed {
    pub(crate) epoch: u8,
    /// The word of the region, and the newest hole that may be filled.
    pub(crate) region: u8,
    pub(crate) stamp: u8,
    pub(crate) frames: Span,
    /// The leaf table, or [`NONE`](super::NONE) if not known yet.
    pub(crate) table: u8,
    /// The table above it, or [`NONE`](super::NONE) if that is the root.
    pub(crate) parent: u8,
}

impl Memo {
    /// Makes the memo of a vCPU that has looked up `gfn` in slots of `frames` frames each.
    pub(crate) fn of(gfn: u8, frames: u8, version: Version, published: u8) -> Self {
        let start = gfn & !(frames - 1);
        Self {
            slot: Span::new(start, start + frames),
            hva: version[start as usize],
            published,
            confirmed: None,
            quiet: None,
        }
    }

    /// Returns the numbers in it.
    pub(crate) fn numbers(&mut self) -> impl Iterator<Item = &mut u8> {
        let Self { published, confirmed, quiet, .. } = self;
        let confirmed = confirmed.iter_mut();
        let confirmed = confirmed.flat_map(|Confirmed { epoch, region, stamp, .. }| [epoch, region, stamp]);
        confirmed.chain(quiet.iter_mut().map(|quiet| &mut quiet.number)).chain([published])
    }

    /// Returns the frames of its slot, those that are confirmed, their table, and whether N covers the slot.
    pub(crate) fn frames(self) -> (Span, Option<(Span, u8)>, bool) {
        let confirmed = self.confirmed.map(|confirmed| (confirmed.frames, confirmed.table));
        (self.slot, confirmed, self.quiet.is_some())
    }

    /// Returns the host page of `gfn`.
    pub(crate) fn page(&self, gfn: u8) -> u8 {
        self.hva + (gfn - self.slot.start)
    }

    /// Returns whether its slot has all frames of their leaf tables.
    pub(crate) fn has_tables(&self) -> bool {
        self.slot.end - self.slot.start >= 2
    }

    /// Returns the slot's part of the leaf table of `gfn`, within one region.
    pub(crate) fn part(&self, gfn: u8) -> Span {
        let around = |&other: &u8| self.slot.has(other) && region(self.page(other)) == region(self.page(gfn));
        let frames = Shared::extent(1, gfn);
        let frames = (frames.start..frames.end).filter(around);
        frames.fold(Span::default(), |part, gfn| part.hull(Span::new(gfn, gfn + 1)))
    }
}
