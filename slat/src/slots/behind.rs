//! The frames behind a range of host addresses, one slot after the other.

use super::publish::SlotSets;
use crate::addr::{Gfn, Hva, PAGE_SHIFT, Span};
use crate::sync::readside::Within;
use slat_slots::Place;

/// The rest of a host range whose frames are edited, slot by slot.
pub(crate) struct Behind {
    hvas: Span<Hva>,
    /// The first place that is not done.
    from: Place,
    /// The first host address that is not done in the slot at `from`.
    inside: Hva,
}

/// The frames of one slot in such a range.
pub(crate) struct Part {
    pub(crate) gfns: Span<Gfn>,
    /// Whether no other slot overlaps the range.
    alone: bool,
    place: Place,
    /// The host address of the first frame.
    hva: Hva,
}

impl Part {
    /// Returns the host page behind one of the frames.
    pub(crate) fn hva_of(&self, gfn: Gfn) -> Hva {
        let hva = self.hva + ((gfn.0 - self.gfns.start.0) << PAGE_SHIFT);
        Hva(hva.0 - hva.offset())
    }
}

impl Behind {
    pub(crate) fn new(hvas: Span<Hva>) -> Self {
        Self { hvas, from: Place::FIRST, inside: hvas.start }
    }

    /// Whether a slot that covered the range alone is done. If slots share the range, only a search can tell.
    pub(crate) fn is_nothing(&self) -> bool {
        self.hvas.is_empty()
    }

    /// Returns the rest after `part` has been processed up to the frame `goal`.
    pub(crate) fn after(self, part: &Part, goal: Gfn) -> Self {
        let inside = part.hva + ((goal.0 - part.gfns.start.0) << PAGE_SHIFT);
        if part.alone {
            Self::new(Span::new(inside.min(self.hvas.end), self.hvas.end))
        } else if goal < part.gfns.end {
            Self { from: part.place, inside, ..self }
        } else {
            // The next place may belong to the next slot, of which nothing is done.
            Self { from: part.place.next(), inside: self.hvas.start, ..self }
        }
    }
}

impl SlotSets {
    /// Returns the next slot's frames, if any are left. They are valid for the section in which they were looked up: in
    /// a later version the frames may have other host pages, which the caller must not edit. The caller may miss slots
    /// that are created meanwhile, because faults there wait for the invalidation to end.
    pub(crate) fn behind(&self, within: Within<'_>, left: &Behind) -> Option<Part> {
        let (now, hvas) = (self.read_within(within), left.hvas);
        if left.from == Place::FIRST
            && let Some(gfns) = self.hva_hints.alone_over(now.number, hvas, || now.version.alone_over(hvas))
        {
            return Some(Part { gfns, alone: true, place: Place::FIRST, hva: hvas.start });
        }
        let (place, slot) = now.version.search_hvas(hvas, left.from).next()?;
        // The rest of the slot that the walk has partly processed.
        let from = if place == left.from { left.inside } else { hvas.start };
        // At most its end: a transaction may have cut off the part where the walk is.
        let hvas = Span::new(from.max(slot.hvas.start).min(slot.hvas.end), hvas.end);
        Some(Part { gfns: slot.part(hvas), alone: false, place, hva: hvas.start })
    }
}
