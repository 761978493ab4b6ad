//! The host of benches that measure the engine alone: it has no data memory, and maps every address for good.
//!
//! The frame of a host address is the address, and saying so is arithmetic, so a terabyte costs as much as a page.
//! Table memory comes from the benches' common pool ([`table_pool`]), which is in huge pages and brought in before.

use crate::parts::sim_host::hva_of;
use crate::threads::table_pool;
use crate::world::compute;
use slat::table::{Heap, Own, TableMemory, TablesOf};
use slat::{Access, Gfn, Host, HostError, HostPage, Hva, Idle, Level, PAGE_SHIFT, Pfn, Span};
use std::ptr::NonNull;

/// Frame n of the host is page n of its address space.
pub struct Arithmetic;

// SAFETY: chunks of the pool are of the size and alignment asked for and lent to one user at a time; frame
// numbers are addresses.
unsafe impl TableMemory for Arithmetic {
    fn lend(&self, _: usize) -> Option<(NonNull<u8>, Pfn)> {
        let chunk = table_pool::take_chunk();
        Some((chunk, Pfn(chunk.as_ptr().expose_provenance() as u64 >> PAGE_SHIFT)))
    }

    unsafe fn take_back(&self, chunk: NonNull<u8>, _: Pfn, _: usize) {
        // SAFETY: required of the caller.
        unsafe { table_pool::give_back_chunk(chunk) };
    }

    #[inline(always)]
    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        Heap.at(pfn)
    }
}

impl Host for Arithmetic {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    #[inline]
    fn lookup(&self, hva: Hva, _access: Access) -> Option<HostPage> {
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }

    fn resolve(&self, _idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.lookup(hva, access).ok_or(HostError::Fault)
    }
}

/// The frame behind a guest frame, where memslots are those of [`slot`](crate::parts::vm_setup::slot).
pub fn frame_of(gfn: Gfn) -> Pfn {
    Pfn(hva_of(gfn).0 >> PAGE_SHIFT)
}

/// [`Arithmetic`] with pages of one size and, from some address on, of 4 KiB. A host that sleeps
/// answers only where it may; it waits awake, since a sleep of microseconds would last tens of them.
pub struct Pages {
    pub level: Level,
    pub small_from: Hva,
    pub sleeps_ns: u64,
    pub is_silent: bool,
}

impl Pages {
    #[inline]
    fn level_at(&self, hva: Hva) -> Level {
        if hva < self.small_from { self.level } else { Level::K4 }
    }
}

// SAFETY: each call is passed on to a host that keeps the contract.
unsafe impl TableMemory for Pages {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        Arithmetic.lend(pages)
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        // SAFETY: required of the caller.
        unsafe { Arithmetic.take_back(first, pfn, pages) }
    }

    #[inline(always)]
    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        Arithmetic.at(pfn)
    }
}

impl Host for Pages {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    #[inline]
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        let page = Arithmetic.lookup(hva, access)?;
        let level = self.level_at(hva);
        let asked = self.sleeps_ns > 0 && hva < self.small_from;
        (!asked).then_some(HostPage { level, ..page })
    }

    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        compute(self.sleeps_ns);
        let page = Arithmetic.resolve(idle, hva, access)?;
        Ok(HostPage { level: self.level_at(hva), ..page })
    }

    fn broadcast_flush(&self, _: Span<Gfn>) -> bool {
        // Negative control: says that it is done, and does nothing.
        self.is_silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_sleeps_answers_only_where_it_may_and_has_small_pages_elsewhere() {
        let mut idle = Idle::take().unwrap();
        let [here, there] = [Hva(7 << 12), Hva(1 << 40)];
        let host = |sleeps_ns| Pages { level: Level::M2, small_from: there, sleeps_ns, is_silent: false };
        let level = |page: HostPage| page.level;
        let look = |sleeps_ns, hva| host(sleeps_ns).lookup(hva, Access::Write).map(level);
        assert_eq!([look(0, here), look(0, there)], [Some(Level::M2), Some(Level::K4)]);
        assert_eq!([look(9, here), look(9, there)], [None, Some(Level::K4)]);
        assert_eq!(host(9).resolve(&mut idle, here, Access::Write).map(level), Ok(Level::M2));
    }
}
