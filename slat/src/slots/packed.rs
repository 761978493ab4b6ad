//! A slot in two words: what the gfn index keeps beside its key, the first frame. Look-ups pay for size.
//!
//! ```text
//! place   host address (page-aligned)        | low 12 bits of the number of pages
//! name    id (32 bits) | the rest of it (30 bits) | log dirty | read-only
//! ```

use super::{Slot, SlotId};
use crate::addr::{Gfn, Hva, PAGE_SHIFT, PAGE_SIZE, Span};

/// See the module's header.
#[derive(Clone, Copy)]
pub(crate) struct Packed {
    place: u64,
    name: u64,
}

const LOW: u64 = PAGE_SIZE - 1;
const LOG_DIRTY: u64 = 2;
const READONLY: u64 = 1;

impl Packed {
    pub(crate) fn new(slot: &Slot) -> Self {
        let pages = slot.gfns.len();
        let flags = u64::from(slot.log_dirty) * LOG_DIRTY | u64::from(slot.readonly) * READONLY;
        Self {
            place: slot.hva.0 | pages & LOW,
            name: u64::from(slot.id.0) << 32 | pages >> PAGE_SHIFT << 2 | flags,
        }
    }

    #[inline(always)]
    pub(crate) fn slot(self, gfn: Gfn) -> Slot {
        let pages = (self.name & 0xffff_fffc) << (PAGE_SHIFT - 2) | self.place & LOW;
        Slot {
            id: SlotId((self.name >> 32) as u32),
            gfns: Span::new(gfn, gfn + pages),
            hva: Hva(self.place & !LOW),
            readonly: self.name & READONLY != 0,
            log_dirty: self.name & LOG_DIRTY != 0,
        }
    }

    /// Both words, for a copy that is kept beside a table.
    pub(crate) fn words(self) -> [u64; 2] {
        [self.place, self.name]
    }

    #[inline(always)]
    pub(crate) fn from_words([place, name]: [u64; 2]) -> Self {
        Self { place, name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::rules::MAX_PAGES;

    #[test]
    fn a_slot_survives_packing() {
        let far = Hva(!LOW);
        for (pages, hva, id) in [(1, Hva(0), 0), (MAX_PAGES, far, u32::MAX), (0x1fff, Hva(0x7000), 77)] {
            let slot = Slot::new(SlotId(id), Gfn(0x12345), pages, hva);
            for slot in [slot, slot.readonly(), slot.log_dirty(), slot.readonly().log_dirty()] {
                assert_eq!(Packed::new(&slot).slot(slot.gfns.start), slot);
            }
        }
    }
}
