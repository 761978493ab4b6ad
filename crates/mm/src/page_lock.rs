//! The page locks: one for each 2 MiB region, shared with distant regions. The only lock that faults take.
//!
//! A holder edits the entries of its region. It may also **read the mappings**: what a version has replaced is
//! freed only after every page lock has been free once ([`PageLocks::outlast_all`]). So the lock is also a read
//! section, at no extra cost.

use crate::mappings::Mappings;
use crate::prim::{Mutex, MutexGuard};
use crate::vma::Vma;
use crate::vmas::Vmas;
use slat::{Gfn, Hva, Level, Span};

/// Number of locks. Regions with the same hash share one; with hundreds of threads two rarely do.
const LOCKS: usize = 1024;

/// A lock on its own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Padded(Mutex<()>);

/// The page locks of one address space.
#[derive(Debug)]
pub(crate) struct PageLocks(Box<[Padded]>);

/// A held page lock.
pub(crate) struct RegionLock<'a> {
    _held: MutexGuard<'a, ()>,
    mappings: &'a Mappings,
}

impl PageLocks {
    pub(crate) fn new() -> Self {
        Self((0..LOCKS).map(|_| Padded::default()).collect())
    }

    /// Takes the lock of the region around `page`. Calls `waits` if it is taken.
    pub(crate) fn lock<'a>(
        &'a self,
        page: Gfn,
        mappings: &'a Mappings,
        waits: impl FnOnce(),
    ) -> RegionLock<'a> {
        let lock = &self.0[index(page)].0;
        let held = lock.try_lock().unwrap_or_else(|| {
            waits();
            lock.lock()
        });
        RegionLock { _held: held, mappings }
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_lock<'a>(&'a self, page: Gfn, mappings: &'a Mappings) -> Option<RegionLock<'a>> {
        let held = self.0[index(page)].0.try_lock()?;
        Some(RegionLock { _held: held, mappings })
    }

    /// Takes the locks of two regions, which may be the same lock.
    pub(crate) fn lock_two(&self, one: Gfn, other: Gfn) -> (MutexGuard<'_, ()>, Option<MutexGuard<'_, ()>>) {
        let (low, high) = (index(one).min(index(other)), index(one).max(index(other)));
        let first = self.0[low].0.lock();
        (first, (low != high).then(|| self.0[high].0.lock()))
    }

    /// Waits until every thread that holds a page lock of `pages` now has released it.
    pub(crate) fn outlast(&self, pages: Span<Gfn>) {
        let regions = pages.start.0 >> Level::M2.shift()..pages.end.0.div_ceil(Level::M2.pages());
        if regions.end - regions.start >= LOCKS as u64 {
            return self.outlast_all();
        }
        for region in regions {
            drop(self.0[index(Gfn(region << Level::M2.shift()))].0.lock());
        }
    }

    /// Waits until every thread that holds any page lock now has released it.
    pub(crate) fn outlast_all(&self) {
        self.0.iter().for_each(|lock| drop(lock.0.lock()));
    }
}

impl RegionLock<'_> {
    /// Returns the current version of the mappings.
    #[inline]
    pub(crate) fn vmas(&self) -> Vmas<'_> {
        // SAFETY: what is replaced while the lock is held is freed later: see the module's header.
        unsafe { self.mappings.read() }
    }

    /// Returns the mapping at `hva`.
    #[inline]
    pub(crate) fn find(&self, hva: Hva) -> Option<&Vma> {
        self.vmas().find(hva)
    }
}

/// Neighbouring regions get different locks, and so do regions a power of two apart, as vCPUs often use.
fn index(page: Gfn) -> usize {
    let region = page.0 >> Level::M2.shift();
    (region.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - LOCKS.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn regions_near_and_far_get_different_locks() {
        for apart in [1, 2, 64, 512, 1 << 14] {
            let used: BTreeSet<_> =
                (0..64u64).map(|number| index(Gfn(number * apart * Level::M2.pages()))).collect();
            assert!(used.len() >= 60, "{apart} apart: {} locks for 64 regions", used.len());
        }
    }
}
