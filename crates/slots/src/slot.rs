//! A memslot: a range of guest frames and its host address.

use crate::addr::{Gfn, Hva, PAGE_SHIFT, PAGE_SIZE, Span};
use crate::memory_type::MemoryType;
use core::fmt;

/// Id of a memslot in its address space, chosen by the user; ids may be sparse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(pub u32);

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A memslot: a range of guest frames and its host address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    /// Its id.
    pub id: SlotId,
    /// The guest frames.
    pub gfns: Span<Gfn>,
    /// The host address of the first frame, or its place in [`PrivateMemory`](crate::PrivateMemory); a multiple
    /// of 4 KiB.
    pub hva: Hva,
    /// Whether guest writes are refused; a refused write becomes MMIO.
    pub readonly: bool,
    /// Whether guest writes are logged, page by page.
    pub log_dirty: bool,
    /// Whether the guest may execute from it. A refused fetch becomes MMIO.
    pub execute: bool,
    /// How its pages are cached; the host may give a page a narrower type.
    pub memory: MemoryType,
}

impl Slot {
    /// A writable and executable slot of ordinary memory: `pages` frames from `gfn`, at host address `hva`.
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

    /// The same slot, not executable.
    #[must_use]
    pub fn no_execute(self) -> Self {
        Self { execute: false, ..self }
    }

    /// The same slot with this memory type.
    ///
    /// For example the registers of a device that the guest drives itself, at guest address 3 GiB:
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

    /// Whether its memory is private to the guest. Memory with a host address is shared;
    /// [`PrivateMemory`](crate::PrivateMemory) has none.
    #[inline]
    pub const fn is_private(&self) -> bool {
        self.hva.private_memory().is_some()
    }

    /// The host addresses of the whole slot.
    #[inline]
    pub fn hvas(&self) -> Span<Hva> {
        Span::sized(self.hva, self.gfns.len() << PAGE_SHIFT)
    }

    /// The part of the slot with these frames.
    pub(crate) fn part(self, gfns: Span<Gfn>) -> Self {
        Self { gfns, hva: self.hva_of(gfns.start), ..self }
    }

    /// The same slot moved to start at `gfn`.
    pub(crate) fn at(self, gfn: Gfn) -> Self {
        Self { gfns: Span::sized(gfn, self.gfns.len()), ..self }
    }
}

/// A slot in two words, without its first frame, which is the key in the gfn index. Small, so that look-ups are
/// fast. Also for caches of slots in atomic words.
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
    /// Packs `slot`, which must keep the rules of [`Limits`](crate::Limits), without its first frame.
    pub fn new(slot: &Slot) -> Self {
        let flags = u64::from(slot.readonly) * READONLY
            | u64::from(slot.log_dirty) * LOG_DIRTY
            | u64::from(!slot.execute) * NO_EXECUTE;
        Self {
            place: slot.hva.0 | flags | slot.memory.bits() << MEMORY,
            name: u64::from(slot.id.0) << 32 | slot.gfns.len(),
        }
    }

    /// Unpacks the slot that starts at `gfn`.
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

    /// Returns both words.
    #[inline(always)]
    pub fn words(self) -> [u64; 2] {
        [self.place, self.name]
    }

    /// Reverses [`words`](Self::words).
    #[inline(always)]
    pub fn from_words(words: [u64; 2]) -> Self {
        let [place, name] = words;
        Self { place, name }
    }
}

/// Both memories of a slot, and its size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backings {
    pub(crate) pages: u64,
    pub(crate) shared: Hva,
    pub(crate) private: Hva,
}

impl Backings {
    /// Returns the whole slot, whose first part is `part`.
    pub(crate) fn whole(&self, part: Slot) -> Slot {
        let gfns = Span::sized(part.gfns.start, self.pages);
        Slot { gfns, hva: self.shared, ..part }
    }

    /// Returns its part with these frames.
    pub(crate) fn part(&self, whole: &Slot, gfns: Span<Gfn>, private: bool) -> Slot {
        let memory = Slot { hva: if private { self.private } else { self.shared }, ..*whole };
        Slot { gfns, hva: memory.hva_of(gfns.start), ..memory }
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
