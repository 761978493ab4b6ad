//! The regions of one version of the slots.

use crate::marks::Marks;
use crate::region::{Mapped, Region, SlotRegion};
use slat_slots::{Gfn, SharedSlots, Snapshot};
use std::sync::Arc;
use vm_memory::{GuestAddress, GuestMemoryBackend};

/// The regions of one version of the slots, without permission checks. It never changes; a clone shares the
/// regions.
///
/// For kernel loaders and IOMMUs. Devices use [`Checked`](crate::Checked).
#[derive(Debug)]
pub struct Memory<R> {
    slots: Snapshot,
    /// In order of addresses. A look-up costs as much as in the slots' tree, and can return references.
    regions: Vec<Arc<R>>,
}

impl<R> Clone for Memory<R> {
    fn clone(&self) -> Self {
        Self { slots: self.slots.clone(), regions: self.regions.clone() }
    }
}

impl<R> Default for Memory<R> {
    /// No regions.
    fn default() -> Self {
        Self { slots: SharedSlots::default().snapshot(), regions: Vec::new() }
    }
}

impl<R> Memory<R> {
    /// Returns the slots of this version.
    pub fn slots(&self) -> &Snapshot {
        &self.slots
    }

    /// Returns the regions, in order.
    pub fn regions(&self) -> &[Arc<R>] {
        &self.regions
    }
}

impl<R: SlotRegion> Memory<R> {
    pub(crate) fn of(slots: Snapshot, mut regions: Vec<Arc<R>>) -> Self {
        regions.sort_by_key(|region| region.start_addr());
        Self { slots, regions }
    }
}

impl<M: Mapped> Memory<Region<M>> {
    /// Takes all marks of its dirty logs: calls `visit` with each written guest frame, in order. See
    /// [`Marks::take`].
    pub fn harvest(&self, mut visit: impl FnMut(Gfn)) {
        for region in &self.regions {
            let (log, start): (&Marks, Gfn) = (region.log(), region.slot().gfns.start);
            log.take(|page| visit(start + page));
        }
    }
}

impl<R: SlotRegion> GuestMemoryBackend for Memory<R> {
    type R = R;

    fn num_regions(&self) -> usize {
        self.regions.len()
    }

    #[inline]
    fn find_region(&self, addr: GuestAddress) -> Option<&R> {
        let after = self.regions.partition_point(|region| region.start_addr() <= addr);
        let region = &**self.regions.get(after.checked_sub(1)?)?;
        (addr <= region.last_addr()).then_some(region)
    }

    fn iter(&self) -> impl Iterator<Item = &R> {
        self.regions.iter().map(|region| &**region)
    }
}
