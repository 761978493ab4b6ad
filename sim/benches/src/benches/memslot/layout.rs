//! The area and its slots.

use crate::host::hva_of;
use slat::{Gfn, PAGE_SIZE, Slot, SlotId};

/// Pages of the area.
const AREA: u64 = (512 << 20) / PAGE_SIZE;
/// Pages of the last slot that guests use, as in the series' test.
pub const ACTIVE: u64 = 25;

/// An area cut into memslots: all of one length but the last, which has the rest, and [`ACTIVE`] pages at least.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    slots: u32,
    each: u64,
}

impl Layout {
    /// So many slots, two at least.
    pub fn new(slots: u32) -> Self {
        Self { slots, each: AREA / u64::from(slots) }
    }

    fn slot(&self, nth: u32) -> Slot {
        let first = u64::from(nth) * self.each;
        let pages = if nth + 1 == self.slots { (AREA - first).max(ACTIVE) } else { self.each };
        Slot::new(SlotId(nth), Gfn(first), pages, hva_of(Gfn(first)))
    }

    /// All of them.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = Slot> + use<> {
        let layout = *self;
        (0..self.slots).map(move |nth| layout.slot(nth))
    }

    /// The one that guests use, and that moves.
    pub fn last(&self) -> Slot {
        self.slot(self.slots - 1)
    }

    /// One that moves, and that no guest uses.
    pub fn beside(&self) -> Slot {
        self.slot(self.slots - 2)
    }

    /// Where the two move to.
    pub fn end(&self) -> Gfn {
        self.last().gfns.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_fill_the_area_and_the_last_has_enough() {
        for slots in super::super::SLOTS {
            let layout = Layout::new(slots);
            let mut at = Gfn(0);
            for slot in layout.slots() {
                assert_eq!((slot.gfns.start, slot.hva), (at, hva_of(at)));
                at = slot.gfns.end;
            }
            assert_eq!((layout.slots().len(), at), (slots as usize, layout.end()));
            assert!(at.0 >= AREA && layout.last().gfns.len() >= ACTIVE);
        }
    }
}
