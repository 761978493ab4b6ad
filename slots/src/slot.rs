//! A memslot: a range of guest frames, and the host address behind it.

use crate::addr::{Gfn, Hva, PAGE_SHIFT, PAGE_SIZE, Span};
use crate::memory_type::MemoryType;
use core::fmt;

/// A memslot's name in its address space, chosen by the user; sparse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(pub u32);

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A memslot: a range of guest frames, and the host address behind it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    /// Its name.
    pub id: SlotId,
    /// The guest frames.
    pub gfns: Span<Gfn>,
    /// The host address of the first of them, or its place in [`PrivateMemory`](crate::PrivateMemory); a multiple of 4 KiB.
    pub hva: Hva,
    /// Whether guest writes are refused (they surface as MMIO).
    pub readonly: bool,
    /// Whether guest writes are logged, page by page.
    pub log_dirty: bool,
    /// Whether the guest may execute what is there. A fetch where it may not surfaces as MMIO.
    pub execute: bool,
    /// How its pages are cached, unless the host says something narrower of a page.
    pub memory: MemoryType,
}

impl Slot {
    /// A slot of ordinary memory, writable and executable, of `pages` frames from `gfn`, backed from `hva` on.
    pub fn new(id: SlotId, gfn: Gfn, pages: u64, hva: Hva) -> Self {
        Self {
            id,
            gfns: Span::sized(gfn, pages),
            hva,
            readonly: false,
            log_dirty: false,
            execute: true,
            memory: MemoryType::WriteBack,
        }
    }

    /// The same slot, read-only.
    #[must_use]
    pub fn readonly(self) -> Self {
        Self { readonly: true, ..self }
    }

    /// The same slot, logging writes.
    #[must_use]
    pub fn log_dirty(self) -> Self {
        Self { log_dirty: true, ..self }
    }

    /// The same slot, which the guest cannot execute.
    #[must_use]
    pub fn no_execute(self) -> Self {
        Self { execute: false, ..self }
    }

    /// The same slot, cached in this way.
    ///
    /// The registers of a device that the guest drives itself, at guest address 3 GiB:
    ///
    /// ```
    /// use slat_slots::{Gfn, Hva, MemoryType, Slot, SlotId};
    /// let registers = Slot::new(SlotId(3), Gfn(0xc_0000), 4, Hva(0x7f00_0000_0000));
    /// let registers = registers.memory(MemoryType::Device).no_execute();
    /// assert_eq!((registers.memory, registers.execute), (MemoryType::Device, false));
    /// ```
    #[must_use]
    pub fn memory(self, memory: MemoryType) -> Self {
        Self { memory, ..self }
    }

    /// The host address of `gfn`, which lies in the slot.
    #[inline(always)]
    pub fn hva_of(&self, gfn: Gfn) -> Hva {
        Hva(self.hva.0 + ((gfn.0 - self.gfns.start.0) << PAGE_SHIFT))
    }

    /// Whether its memory is the guest's own, so that no access reaches it that the guest means to share: memory that has a host
    /// address is shared, [`PrivateMemory`](crate::PrivateMemory) has none.
    #[inline]
    pub const fn is_private(&self) -> bool {
        self.hva.private_memory().is_some()
    }

    /// The host addresses of the whole slot.
    #[inline]
    pub fn hvas(&self) -> Span<Hva> {
        Span::sized(self.hva, self.gfns.len() << PAGE_SHIFT)
    }

    /// These of its frames as a slot.
    pub(crate) fn part(self, gfns: Span<Gfn>) -> Self {
        Self { gfns, hva: self.hva_of(gfns.start), ..self }
    }

    /// The same slot from another frame on.
    pub(crate) fn at(self, gfn: Gfn) -> Self {
        Self { gfns: Span::sized(gfn, self.gfns.len()), ..self }
    }
}

/// A slot in two words: what the gfn index keeps beside its key, the first frame. Look-ups pay for size. For caches of slots that are
/// kept in atomic words.
///
/// ```text
/// place   host address (page-aligned)  | memory type (2 bits) | no execute | log dirty | read-only
/// name    id (32 bits)                 | number of pages (31 bits)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packed {
    place: u64,
    name: u64,
}

const READONLY: u64 = 1;
const LOG_DIRTY: u64 = 2;
const NO_EXECUTE: u64 = 4;
/// The lowest bit of the memory type.
const MEMORY: u32 = 3;

impl Packed {
    /// `slot`, which keeps the rules of [`Limits`](crate::Limits), without its first frame.
    pub fn new(slot: &Slot) -> Self {
        let flags = u64::from(slot.readonly) * READONLY
            | u64::from(slot.log_dirty) * LOG_DIRTY
            | u64::from(!slot.execute) * NO_EXECUTE;
        Self {
            place: slot.hva.0 | flags | slot.memory.bits() << MEMORY,
            name: u64::from(slot.id.0) << 32 | slot.gfns.len(),
        }
    }

    /// The slot, whose first frame is `gfn`.
    #[inline(always)]
    pub fn slot(self, gfn: Gfn) -> Slot {
        let has = |flag| self.place & flag != 0;
        Slot {
            id: SlotId((self.name >> 32) as u32),
            gfns: Span::new(gfn, gfn + u64::from(self.name as u32)),
            hva: Hva(self.place & !(PAGE_SIZE - 1)),
            readonly: has(READONLY),
            log_dirty: has(LOG_DIRTY),
            execute: !has(NO_EXECUTE),
            memory: MemoryType::from_bits(self.place >> MEMORY),
        }
    }

    /// Both words.
    #[inline(always)]
    pub fn words(self) -> [u64; 2] {
        [self.place, self.name]
    }

    /// What [`words`](Self::words) took apart.
    #[inline(always)]
    pub fn from_words(words: [u64; 2]) -> Self {
        let [place, name] = words;
        Self { place, name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::PrivateMemory;
    use crate::rules::MAX_PAGES;

    #[test]
    fn a_slot_survives_packing() {
        let far = Hva(!(PAGE_SIZE - 1));
        for (pages, hva, id) in [(1, Hva(0), 0), (MAX_PAGES, far, u32::MAX), (0x1fff, Hva(0x7000), 77)] {
            let slot = Slot::new(SlotId(id), Gfn(0x12345), pages, hva);
            let typed = MemoryType::ALL.map(|memory| slot.memory(memory).no_execute());
            let private = Slot { hva: PrivateMemory(5).at(hva.0 & (PrivateMemory::BYTES - 1)), ..slot };
            let flagged = [slot, slot.readonly(), slot.log_dirty(), slot.readonly().log_dirty(), private];
            for slot in flagged.into_iter().chain(typed) {
                assert_eq!(Packed::new(&slot).slot(slot.gfns.start), slot);
            }
        }
    }
}
