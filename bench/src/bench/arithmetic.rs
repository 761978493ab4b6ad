//! The host of benches that measure the engine alone: no data memory behind it, every address mapped for ever.
//!
//! The frame of a host address is the address, and saying so is arithmetic, so a terabyte costs as much as a page.
//! Table memory comes from the benches' common pool ([`tables`]), which is in huge pages and brought in before.

use super::tables;
use slat::{Access, Host, HostError, HostPage, Hva, Idle, PAGE_SHIFT, Pfn, TableMemory};
use std::ptr::NonNull;

/// See the module's header.
pub struct Arithmetic;

// SAFETY: chunks of the pool are of the size and alignment asked for and lent to one user at a time; frame
// numbers are the trait's own.
unsafe impl TableMemory for Arithmetic {
    fn alloc_chunk(&self) -> Option<NonNull<u8>> {
        Some(tables::take_chunk())
    }

    unsafe fn free_chunk(&self, chunk: NonNull<u8>) {
        // SAFETY: the caller's promise is the same.
        unsafe { tables::give_back_chunk(chunk) };
    }
}

impl Host for Arithmetic {
    #[inline]
    fn lookup(&self, hva: Hva, _access: Access) -> Option<HostPage> {
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }

    fn resolve(&self, _idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }
}
