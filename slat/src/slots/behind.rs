//! What is behind a range of host addresses: the frames of one slot after the other.

use super::hint::part;
use super::publish::{Reading, SlotSets};
use crate::addr::{Gfn, Hva, PAGE_SHIFT, Span};
use crate::sync::readside::{ReadSide, Seat};
use slat_slots::Place;

/// What is left of a host range whose frames are edited, slot by slot.
#[derive(Debug)]
pub(crate) struct Behind {
    hvas: Span<Hva>,
    /// The slots before are done with.
    from: Place,
    /// In the slot at that place: what lies before is.
    inside: Hva,
}

/// The frames of one slot in such a range.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) gfns: Span<Gfn>,
    /// No other slot has any of the range.
    alone: bool,
    place: Place,
    /// The host address of the first frame.
    hva: Hva,
}

impl Part {
    /// The host page behind one of its frames.
    pub(crate) fn hva_of(&self, gfn: Gfn) -> Hva {
        let hva = self.hva + ((gfn.0 - self.gfns.start.0) << PAGE_SHIFT);
        Hva(hva.0 - hva.offset())
    }
}

impl Behind {
    pub(crate) fn new(hvas: Span<Hva>) -> Self {
        Self { hvas, from: Place::FIRST, inside: hvas.start }
    }

    /// Whether a slot that was alone over the range has had all of it. Where slots share the range, only a search tells.
    pub(crate) fn is_nothing(&self) -> bool {
        self.hvas.is_empty()
    }

    /// What is left when `part` is done with up to the frame `goal`.
    pub(crate) fn after(self, part: &Part, goal: Gfn) -> Self {
        let inside = part.hva + ((goal.0 - part.gfns.start.0) << PAGE_SHIFT);
        if part.alone {
            Self::new(Span::new(inside.min(self.hvas.end), self.hvas.end))
        } else if goal < part.gfns.end {
            Self { from: part.place, inside, ..self }
        } else {
            // The next place may be that of the next slot: nothing of it is done with.
            Self { from: part.place.next(), inside: self.hvas.start, ..self }
        }
    }
}

impl SlotSets {
    /// The next slot's frames, if there are any left. They are good for the section in which they were looked up: in a
    /// later version they may stand for other host pages, and those are not the caller's to edit. Slots that come
    /// in between need not be seen: faults there wait for the invalidation to end.
    pub(crate) fn behind(&self, reads: &ReadSide, seat: &Seat, left: &Behind) -> Option<Part> {
        self.behind_in(&self.read(reads, seat), left)
    }

    pub(crate) fn behind_in(&self, reading: &Reading<'_>, left: &Behind) -> Option<Part> {
        let (version, hvas) = (reading.version, left.hvas);
        if left.from == Place::FIRST
            && let Some(gfns) = self.hva_hints.alone_over(reading.number, hvas, || version.alone_over(hvas))
        {
            return Some(Part { gfns, alone: true, place: Place::FIRST, hva: hvas.start });
        }
        let (place, slot) = version.search_hvas(hvas, left.from).next()?;
        // The rest of the slot that the walk had come into.
        let from = if place == left.from { left.inside } else { hvas.start };
        let hvas = Span::new(from.max(slot.hvas.start), hvas.end);
        Some(Part { gfns: part(&slot, hvas), alone: false, place, hva: hvas.start })
    }
}
