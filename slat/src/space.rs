//! An address space of a VM: its memslots, and the table that faults fill from them.
//!
//! Most VMs have one. On x86 a second one serves system management mode, with its own memslots and mappings over the
//! same host memory. Invalidations by host address reach every space. Flushes name guest frames and no space, so a vCPU
//! forgets those frames in whichever space it is.

use crate::hooks::{Nested, NestedState};
use crate::slots::Limits;
use crate::slots::publish::SlotSets;
use crate::slots::watched::Watched;
use crate::table::{Pool, Radix};
use crate::{Format, NoMemory, SpaceId, TableMemory};

/// One address space of a VM.
pub(crate) struct Space<F> {
    pub(crate) id: SpaceId,
    pub(crate) memslots: SlotSets,
    pub(crate) radix: Radix<F>,
    pub(crate) watched: Watched,
    pub(crate) nested: <Nested as NestedState>::OfSpace<F>,
}

impl<F> core::fmt::Debug for Space<F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Space").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<F: Format> Space<F> {
    /// A space without memslots, with one root table. `all_dirty`: new logs start with all pages dirty.
    pub(crate) fn new<M: TableMemory>(
        id: SpaceId,
        limits: Limits,
        all_dirty: bool,
        memory: &M,
        pool: &Pool,
    ) -> Result<Self, NoMemory> {
        let memslots = SlotSets::new(limits, all_dirty);
        let radix = Radix::new(memory, pool)?;
        Ok(Self {
            id,
            memslots,
            radix,
            watched: Watched::default(),
            nested: <Nested as NestedState>::OfSpace::<F>::default(),
        })
    }
}
