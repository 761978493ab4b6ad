//! A record of the array.

use crate::scenarios::prelude::*;

/// Ids are below this: as many as the kernel lets users have on x86.
pub const IDS: u32 = 32_764;

/// One slot, field by field as wide as the record of Linux 5.10 on x86-64, in its order: 88 bytes. Copies and scans of
/// the array then move through as much memory, and touch as many cache lines a slot, as they did there. A field
/// that this bench does not use is zero, and copied like the rest.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Record {
    first_gfn: u64,
    pages: u64,
    dirty_bitmap: u64,
    reverse_maps: [u64; 3],
    large_page_info: [u64; 2],
    write_tracking: u64,
    host_address: u64,
    flags: u32,
    id: u16,
    address_space: u16,
}

const _: () = assert!(size_of::<Record>() == 88);

impl Record {
    const INVALID: u32 = 1 << 16;

    /// The record of a slot whose id fits.
    pub fn new(slot: &Slot) -> Self {
        Self {
            first_gfn: slot.gfns.start.0,
            pages: slot.gfns.len(),
            host_address: slot.hva.0,
            id: slot.id.0 as u16,
            ..Self::default()
        }
    }

    /// The same slot elsewhere.
    pub fn at(self, gfn: Gfn) -> Self {
        Self { first_gfn: gfn.0, ..self }
    }

    /// The same slot, being deleted or moved: a fault that meets it tries again later.
    pub fn invalid(self) -> Self {
        Self { flags: self.flags | Self::INVALID, ..self }
    }

    #[inline(always)]
    pub(super) fn is_invalid(&self) -> bool {
        self.flags & Self::INVALID != 0
    }

    /// The slot that it records.
    pub fn slot(&self) -> Slot {
        Slot::new(SlotId(u32::from(self.id)), Gfn(self.first_gfn), self.pages, Hva(self.host_address))
    }

    #[inline(always)]
    pub(super) fn id(&self) -> usize {
        usize::from(self.id)
    }

    /// The address that a look at it loads from.
    #[inline(always)]
    pub(super) fn place_in_memory(&self) -> *const () {
        core::ptr::from_ref(self).cast()
    }

    #[inline(always)]
    pub(super) fn first(&self) -> Gfn {
        Gfn(self.first_gfn)
    }

    #[inline(always)]
    pub(super) fn contains(&self, gfn: Gfn) -> bool {
        gfn.0.wrapping_sub(self.first_gfn) < self.pages
    }

    /// The host address of `gfn`, which lies in the slot.
    #[inline(always)]
    pub fn hva_of(&self, gfn: Gfn) -> Hva {
        Hva(self.host_address + ((gfn.0 - self.first_gfn) << PAGE_SHIFT))
    }

    /// The frames behind `hvas`, page by page, if there are any.
    #[inline(always)]
    pub fn behind(&self, hvas: Span<Hva>) -> Option<Span<Gfn>> {
        let (start, end) = (self.host_address, self.host_address + (self.pages << PAGE_SHIFT));
        let (from, to) = (hvas.start.0.max(start), hvas.end.0.min(end));
        if from >= to {
            return None;
        }
        let page = |hva: u64| (hva - start) >> PAGE_SHIFT;
        Some(Span::new(self.first() + page(from), self.first() + (page(to - 1) + 1)))
    }
}
