//! Memory with permission checks.

use crate::region::SlotRegion;
use crate::slot_regions::Memory;
use std::fmt;
use std::io;
use std::iter::FusedIterator;
use vm_memory::bitmap::{BS, MS};
use vm_memory::guest_memory::{GuestMemorySliceIterator, Result};
use vm_memory::{
    Address, GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryError, Permissions, VolatileSlice,
};

/// The regions of one version of the slots, for devices: only memory that the guest may write gives slices for
/// writing.
#[derive(Debug)]
pub struct Checked<R>(Memory<R>);

impl<R> Clone for Checked<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<R> Default for Checked<R> {
    fn default() -> Self {
        Self(Memory::default())
    }
}

impl<R> Checked<R> {
    /// Adds permission checks to `memory`.
    pub fn new(memory: Memory<R>) -> Self {
        Self(memory)
    }

    /// Returns the memory without permission checks, for kernel loaders and code that fills ROMs.
    pub fn raw(&self) -> &Memory<R> {
        &self.0
    }
}

/// The slices of one access to [`Checked`] memory.
pub struct Slices<'a, R> {
    memory: &'a Memory<R>,
    at: GuestAddress,
    left: usize,
    write: bool,
}

impl<R> fmt::Debug for Slices<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slices").field("at", &self.at).field("left", &self.left).finish_non_exhaustive()
    }
}

/// The error of a write to read-only memory.
pub(crate) fn denied() -> GuestMemoryError {
    GuestMemoryError::IOError(io::ErrorKind::PermissionDenied.into())
}

/// Returns the address after `len` more bytes; wraps to 0 only after the last address.
pub(crate) fn advance(at: GuestAddress, len: usize) -> Result<GuestAddress> {
    match at.overflowing_add(len as u64) {
        (GuestAddress(past), true) if past != 0 => Err(GuestMemoryError::GuestAddressOverflow),
        (next, _) => Ok(next),
    }
}

impl<'a, R: SlotRegion> Slices<'a, R> {
    #[inline]
    fn slice(&mut self) -> Result<VolatileSlice<'a, MS<'a, Memory<R>>>> {
        let refused = GuestMemoryError::InvalidGuestAddress(self.at);
        let (region, within) = self.memory.to_region_addr(self.at).ok_or(refused)?;
        if self.write && region.slot().readonly {
            return Err(denied());
        }
        let len = self.left.min((region.len() - within.raw_value()) as usize);
        let next = advance(self.at, len)?;
        let slice = region.get_slice(within, len)?;
        (self.at, self.left) = (next, self.left - len);
        Ok(slice)
    }
}

impl<'a, R: SlotRegion> Iterator for Slices<'a, R> {
    type Item = Result<VolatileSlice<'a, MS<'a, Memory<R>>>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let slice = self.slice();
        if slice.is_err() {
            self.left = 0;
        }
        Some(slice)
    }
}

impl<R: SlotRegion> FusedIterator for Slices<'_, R> {}

impl<'a, R: SlotRegion> GuestMemorySliceIterator<'a, MS<'a, Memory<R>>> for Slices<'a, R> {}

impl<R: SlotRegion> GuestMemory for Checked<R> {
    type PhysicalMemory = Memory<R>;
    type Bitmap = R::B;

    fn check_range(&self, addr: GuestAddress, count: usize, access: Permissions) -> bool {
        let mut slices = Slices { memory: &self.0, at: addr, left: count, write: access.has_write() };
        slices.all(|slice| slice.is_ok())
    }

    #[inline]
    fn get_slices(
        &self,
        addr: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> Result<impl GuestMemorySliceIterator<'_, BS<'_, R::B>>> {
        Ok(Slices { memory: &self.0, at: addr, left: count, write: access.has_write() })
    }

    /// Returns the raw memory, which has the same addresses.
    fn physical_memory(&self) -> Option<&Memory<R>> {
        Some(&self.0)
    }
}
