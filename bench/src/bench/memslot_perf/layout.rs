//! The test area: so many pages, cut into so many memslots.
//!
//! ```text
//! gfn   FIRST                                                             end
//!       │ slot 0 │ slot 1 │ … │ slot n−1: as long as the others, plus the rest │
//! hva   FIRST_HVA, in the same order, without gaps
//! ```
//! Every slot has a page at least, so the area grows with the number of slots. Of a large area only a part is used.

use slat::{Gfn, Hva, PAGE_SIZE, Slot, SlotId, Span};

/// Where the area begins: at a boundary of every page size.
const FIRST: Gfn = Gfn(1 << 20);
const FIRST_HVA: Hva = Hva(1 << 44);

/// An area cut into memslots.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    slots: u32,
    /// Of every slot but the last.
    each: u64,
    last: u64,
}

impl Layout {
    /// `slots` slots (two at least) over `pages` pages, or over as many as it takes for each slot to have one and
    /// for the last to have `last`.
    pub fn new(slots: u32, pages: u64, last: u64) -> Self {
        let each = (pages / u64::from(slots)).max(1);
        let rest = pages.saturating_sub(each * u64::from(slots - 1));
        Self { slots, each, last: rest.max(last).max(1) }
    }

    /// How many slots there are.
    pub fn len(&self) -> u32 {
        self.slots
    }

    /// Slot number `nth`; its number is its id.
    pub fn slot(&self, nth: u32) -> Slot {
        let first = u64::from(nth) * self.each;
        let pages = if nth + 1 == self.slots { self.last } else { self.each };
        Slot::new(SlotId(nth), FIRST + first, pages, FIRST_HVA + first * PAGE_SIZE)
    }

    /// All of them, in order.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = Slot> + use<> {
        let layout = *self;
        (0..self.slots).map(move |nth| layout.slot(nth))
    }

    /// The last one.
    pub fn last(&self) -> Slot {
        self.slot(self.slots - 1)
    }

    /// The frames of the area.
    pub fn gfns(&self) -> Span<Gfn> {
        Span::new(FIRST, self.last().gfns.end)
    }

    /// The host addresses behind frames of the area.
    pub fn hvas(gfns: Span<Gfn>) -> Span<Hva> {
        let hva = |gfn: Gfn| FIRST_HVA + (gfn.0 - FIRST.0) * PAGE_SIZE;
        Span::new(hva(gfns.start), hva(gfns.end))
    }

    /// `gfns`, in parts that each lie in one slot.
    pub fn by_slot(&self, gfns: Span<Gfn>) -> impl Iterator<Item = Span<Gfn>> + use<> {
        let layout = *self;
        let mut at = gfns.start;
        std::iter::from_fn(move || {
            let nth = ((at.0 - FIRST.0) / layout.each).min(u64::from(layout.slots) - 1);
            let part = Span::new(at, layout.slot(nth as u32).gfns.end.min(gfns.end));
            at = part.end;
            (!part.is_empty()).then_some(part)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_fill_the_area_and_the_last_takes_the_rest() {
        for (slots, pages, last) in [(2, 7, 0), (10, 8192, 0), (509, 8192, 25), (8194, 8192, 25), (3, 3, 25)]
        {
            let layout = Layout::new(slots, pages, last);
            let mut at = layout.gfns().start;
            for slot in layout.slots() {
                assert_eq!((slot.gfns.start, slot.hvas()), (at, Layout::hvas(slot.gfns)));
                at = slot.gfns.end;
            }
            assert_eq!(at, layout.gfns().end);
            assert!(layout.gfns().len() >= pages && layout.last().gfns.len() >= last.max(1));
            assert_eq!(layout.slots().len(), slots as usize);
        }
        assert_eq!(Layout::new(32_764, 32_768, 0).last().gfns.len(), 5);
    }

    #[test]
    fn parts_end_where_slots_end() {
        let layout = Layout::new(3, 10, 0); // 3, 3 and 4 pages
        let parts = |from, to| {
            let gfns = Span::new(FIRST + from, FIRST + to);
            layout
                .by_slot(gfns)
                .map(|part| (part.start.0 - FIRST.0, part.end.0 - FIRST.0))
                .collect::<Vec<_>>()
        };
        assert_eq!(parts(0, 10), [(0, 3), (3, 6), (6, 10)]);
        assert_eq!(parts(2, 7), [(2, 3), (3, 6), (6, 7)]);
        assert_eq!(parts(9, 10), [(9, 10)]);
        assert_eq!(parts(4, 4), []);
    }
}
