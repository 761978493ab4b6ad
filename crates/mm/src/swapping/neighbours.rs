//! Which pages are read together with a page that an access needs; [`readahead`](crate::swap::readahead) says how many.

use crate::held::Held;
use crate::pages::hva_of;
use crate::pte::Pte;
use crate::space::AddressSpace;
use crate::swap::{HeldCopy, Shadow};
use slat::{Gfn, Hva, Level, Pfn, Span};

/// A page to read ahead.
pub(super) struct Neighbour<'a> {
    pub(super) page: Gfn,
    pub(super) copy: HeldCopy<'a>,
    pub(super) shadow: Shadow,
    pub(super) frame: Held<'a>,
}

impl AddressSpace {
    /// Returns the pages to read with `page`, whose copy is `wanted`. The caller holds no lock.
    pub(super) fn neighbours(&self, page: Gfn, wanted: &HeldCopy<'_>) -> Vec<Neighbour<'_>> {
        let Some(swap) = self.swap.as_deref().filter(|swap| swap.read_ahead > 1) else { return Vec::new() };
        let Some(device) = swap.device_of(wanted.entry()) else { return Vec::new() };
        let state = self.state.read();
        let Some(mapping) = state.vmas().find(hva_of(page)).map(|vma| vma.span) else { return Vec::new() };
        let region = Span::sized(page.base(Level::M2), Level::M2.pages());
        let window = self.ahead.window(mapping, page, swap.read_ahead.into()).clamp(&region);
        if window.len() < 2 || !self.has_room_for(window.len()) {
            return Vec::new();
        }
        let _lock = self.lock_region(page);
        let neighbour = |page: Gfn| {
            let (level, entry) = self.map.find(page);
            let Pte::Swapped { entry, shadow } = Pte::of(entry.load(), level) else { return None };
            if swap.device_of(entry) != Some(device) {
                return None;
            }
            let frame = self.arena.page(Level::K4).ok()?;
            Some(Neighbour { page, copy: swap.hold(entry), shadow, frame })
        };
        (window.start.0..window.end.0).map(Gfn).filter(|&other| other != page).filter_map(neighbour).collect()
    }

    /// Records that a fault has found the page with this frame parked.
    #[inline]
    pub(crate) fn found_parked(&self, mapping: Span<Hva>, pfn: Pfn) {
        if self.swap.is_some() && self.arena.take_ahead(pfn) {
            self.ahead.used(mapping);
            self.lru_used_ahead();
            if let Some(swap) = &self.swap {
                swap.used_ahead();
            }
        }
    }
}
