//! A memslot as a region: memory of this process, with a bitmap.

use crate::marks::Marks;
use slat_slots::{Gpa, Hva, PAGE_SIZE, Rule, Slot, SlotError, SlotId, Span};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use vm_memory::bitmap::{BS, Bitmap, NewBitmap};
use vm_memory::guest_memory::Result as MemoryResult;
use vm_memory::{
    Address, GuestAddress, GuestMemoryError, GuestMemoryRegion, GuestMemoryRegionBytes, GuestUsize,
    MemoryRegionAddress, VolatileSlice,
};

/// Memory of this process at a fixed address.
///
/// # Safety
/// While the value lives, even if it is moved, the `len` bytes from `as_ptr` on are mapped, and are accessed
/// only by volatile and atomic accesses. Both functions always return the same values.
pub unsafe trait Mapped {
    /// Returns its first byte, at a multiple of 4 KiB.
    fn as_ptr(&self) -> *mut u8;

    /// Returns its length in bytes.
    fn len(&self) -> usize;

    /// Whether its length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

// SAFETY: unmapped when dropped; vm-memory uses volatile accesses.
#[cfg(feature = "mmap")]
unsafe impl<B: Bitmap> Mapped for vm_memory::MmapRegion<B> {
    fn as_ptr(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn len(&self) -> usize {
        self.size()
    }
}

// SAFETY: the inner value keeps the contract, and does not move.
unsafe impl<M: Mapped + ?Sized> Mapped for Arc<M> {
    fn as_ptr(&self) -> *mut u8 {
        (**self).as_ptr()
    }

    fn len(&self) -> usize {
        (**self).len()
    }
}

/// A region with a memslot.
pub trait SlotRegion: GuestMemoryRegion {
    /// Returns the slot: the region's bytes in whole pages, with logging.
    fn slot(&self) -> Slot;
}

/// A memslot, its memory, and the bitmap that marks its writes: [`Marks`] by default.
///
/// Its length is that of the memory, in bytes. The slot has enough pages for it.
pub struct Region<M, B = Marks> {
    slot: Slot,
    base: *mut u8,
    len: usize,
    bitmap: B,
    memory: M,
}

// SAFETY: the pointer is to `memory`, and is used for volatile accesses only.
unsafe impl<M: Send, B: Send> Send for Region<M, B> {}
// SAFETY: as above.
unsafe impl<M: Sync, B: Sync> Sync for Region<M, B> {}

impl<M, B> fmt::Debug for Region<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("slot", &self.slot).field("len", &self.len).finish_non_exhaustive()
    }
}

impl<M: Mapped> Region<M> {
    /// Creates slot `id` with `memory` at `start`, which is a multiple of 4 KiB. The memory has at least one
    /// byte.
    pub fn new(id: SlotId, start: GuestAddress, memory: M) -> Result<Self, SlotError> {
        let marks = Marks::with_len(memory.len());
        Self::with_bitmap(id, start, memory, marks)
    }
}

impl<M: Mapped, B> Region<M, B> {
    /// Like [`new`](Self::new), with another bitmap.
    pub fn with_bitmap(id: SlotId, start: GuestAddress, memory: M, bitmap: B) -> Result<Self, SlotError> {
        let (base, len, gpa) = (memory.as_ptr(), memory.len(), Gpa(start.0));
        let refused = |rule| Err(SlotError { id, gpas: Span::sized(gpa, 0), rule });
        if len == 0 {
            return refused(Rule::Empty);
        }
        if gpa.offset() != 0 {
            return refused(Rule::GuestAddress);
        }
        let pages = (len as u64).div_ceil(PAGE_SIZE);
        if gpa.0.checked_add(pages * PAGE_SIZE).is_none() {
            return refused(Rule::Wraps);
        }
        let slot = Slot::new(id, gpa.gfn(), pages, Hva(base as u64)).log_dirty();
        Ok(Self { slot, base, len, bitmap, memory })
    }

    /// The same region, read-only: [`Checked`](crate::Checked) memory refuses writes, raw memory does not.
    #[must_use]
    pub fn readonly(self) -> Self {
        Self { slot: self.slot.readonly(), ..self }
    }
}

/// Gives access to its memory.
impl<M, B> Deref for Region<M, B> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.memory
    }
}

impl<M, B> Region<M, B> {
    /// Returns its bitmap: a dirty log, or the value given to `with_bitmap`.
    pub fn log(&self) -> &B {
        &self.bitmap
    }
}

impl<M: Mapped, B: Bitmap> SlotRegion for Region<M, B> {
    #[inline]
    fn slot(&self) -> Slot {
        self.slot
    }
}

impl<M: Mapped, B: Bitmap> GuestMemoryRegion for Region<M, B> {
    type B = B;

    #[inline]
    fn len(&self) -> GuestUsize {
        self.len as u64
    }

    #[inline]
    fn start_addr(&self) -> GuestAddress {
        GuestAddress(self.slot.gfns.start.0 * PAGE_SIZE)
    }

    fn bitmap(&self) -> BS<'_, B> {
        self.bitmap.slice_at(0)
    }

    fn get_host_address(&self, at: MemoryRegionAddress) -> MemoryResult<*mut u8> {
        let at = self.check_address(at).ok_or(GuestMemoryError::InvalidBackendAddress)?;
        Ok(self.base.wrapping_add(at.raw_value() as usize))
    }

    #[inline]
    fn get_slice(&self, at: MemoryRegionAddress, count: usize) -> MemoryResult<VolatileSlice<'_, BS<'_, B>>> {
        let at = at.raw_value() as usize;
        if at.checked_add(count).is_none_or(|end| end > self.len) {
            return Err(GuestMemoryError::InvalidBackendAddress);
        }
        // SAFETY: in bounds; `memory` keeps it mapped, and lives as long as the slice.
        Ok(unsafe { VolatileSlice::with_bitmap(self.base.add(at), count, self.bitmap.slice_at(at), None) })
    }
}

impl<M: Mapped, B: Bitmap> GuestMemoryRegionBytes for Region<M, B> {}
