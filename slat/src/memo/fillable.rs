//! A hole that the quick path of a fault may fill.

use crate::table::{Entry, Node};
use crate::{Format, Gfn, Hva, Level, PAGE_SHIFT, Slot, Word};

/// A hole that the fault may fill, and the host address of its page.
pub(crate) struct Fillable<'s> {
    pub(crate) entry: &'s Entry,
    pub(crate) word: Word,
    pub(crate) hva: Hva,
}

/// The page number of a slot's host address minus the frame number there, modulo 2⁶⁴. It is the same for each page of
/// the slot. [`Slot::hva_of`] takes two words of the slot; with this, the quick path loads one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offset(u64);

impl Offset {
    pub(super) const ZERO: Self = Self(0);

    pub(super) fn of(slot: &Slot) -> Self {
        Self((slot.hva.0 >> PAGE_SHIFT).wrapping_sub(slot.gfns.start.0))
    }

    /// As [`Slot::hva_of`]: a slot's host address is page-aligned.
    #[inline(always)]
    fn hva_of(self, gfn: Gfn) -> Hva {
        Hva(gfn.0.wrapping_add(self.0) << PAGE_SHIFT)
    }
}

/// Returns the hole of `gfn` in its leaf table, if there is one and it is not newer than `newest`.
///
/// # Safety
/// `table` is allocated for all of `'s`.
#[inline(always)]
pub(super) unsafe fn fillable<'s, F: Format>(
    table: Node,
    newest: Word,
    gfn: Gfn,
    offset: Offset,
) -> Option<Fillable<'s>> {
    // SAFETY: the caller guarantees it.
    let entry = unsafe { &table.entries()[F::index(gfn, Level::K4)] };
    let word = entry.load();
    let fillable = word.is_hole() && word <= newest;
    fillable.then(|| Fillable { entry, word, hva: offset.hva_of(gfn) })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::slots::SlotId;

    #[test]
    fn an_offset_gives_the_host_addresses_of_its_slot() {
        let addresses = [0, 1 << 12, 0x7fff_ffff_f000, 1 << 62, 1 << 63, !0xfff - (7 << 12)];
        for (hva, first) in
            addresses.into_iter().flat_map(|hva| [0, 1, 1 << 35, (1 << 45) - 8].map(|gfn| (hva, gfn)))
        {
            let slot = Slot::new(SlotId(0), Gfn(first), 8, Hva(hva));
            for gfn in (first..first + 8).map(Gfn) {
                assert_eq!(Offset::of(&slot).hva_of(gfn), slot.hva_of(gfn), "{slot:?}");
            }
        }
    }
}
