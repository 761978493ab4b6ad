//! The current slots: transactions change them while devices hold snapshots.

use crate::checked::Checked;
use crate::region::SlotRegion;
use crate::slot_regions::Memory;
use slat_slots::{CommitError, SharedSlots, SlotError, SlotId, Transaction};
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use vm_memory::GuestAddressSpace;

/// The memory of a machine, whose regions can be added and removed. Clones share it. The crate's first page has
/// an example.
///
/// A device keeps a `SlotMemory`, and calls `memory` for each request. This costs
/// one reference count.
pub struct SlotMemory<R>(Arc<Shared<R>>);

struct Shared<R> {
    slots: Mutex<SharedSlots>,
    /// Replaced while `slots` is locked.
    current: RwLock<Arc<Checked<R>>>,
}

/// Operations on the next version of a [`SlotMemory`].
#[derive(Debug)]
pub struct SlotTransaction<'t, 's, R> {
    slots: &'t mut Transaction<'s>,
    regions: &'t mut Vec<Arc<R>>,
}

impl<R> Clone for SlotMemory<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<R> Default for SlotMemory<R> {
    /// No slots.
    fn default() -> Self {
        Self(Arc::new(Shared { slots: Mutex::default(), current: RwLock::default() }))
    }
}

impl<R> fmt::Debug for SlotMemory<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotMemory").field("slots", self.current().raw().slots()).finish_non_exhaustive()
    }
}

impl<R> SlotMemory<R> {
    pub(crate) fn current(&self) -> Arc<Checked<R>> {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<R: SlotRegion> SlotMemory<R> {
    /// Runs `operations` and publishes their result at once. On an error, from them or from the commit, nothing
    /// changes. Waits for other transactions, but not for devices.
    pub fn commit<T>(
        &self,
        operations: impl FnOnce(&mut SlotTransaction<'_, '_, R>) -> Result<T, SlotError>,
    ) -> Result<T, SlotError> {
        Ok(self.commit_with(operations, |_| Ok::<_, Infallible>(()))?)
    }

    /// Commits together with an operation of the embedder that may fail, such as a system call that gives a
    /// hypervisor the same slots. Calls `confirm` once, after all operations have succeeded. If it fails,
    /// nothing has changed.
    ///
    /// ```
    /// use slat_vm_memory::{CommitError, Region, SlotId, SlotMemory};
    /// use vm_memory::{GuestAddress, MmapRegion};
    /// let memory = SlotMemory::default();
    /// let ram = Region::new(SlotId(0), GuestAddress(0), MmapRegion::<()>::new(4096)?)?;
    /// // KVM_SET_USER_MEMORY_REGION returned EINVAL.
    /// let refused = memory.commit_with(|tx| tx.insert(ram), |()| Err("errno 22"));
    /// assert_eq!(refused, Err(CommitError::Refused("errno 22")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn commit_with<T, E>(
        &self,
        operations: impl FnOnce(&mut SlotTransaction<'_, '_, R>) -> Result<T, SlotError>,
        confirm: impl FnOnce(&T) -> Result<(), E>,
    ) -> Result<T, CommitError<E>> {
        let mut slots = self.0.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut regions = self.current().raw().regions().to_vec();
        let result = slots.commit_with(
            |tx| operations(&mut SlotTransaction { slots: tx, regions: &mut regions }),
            confirm,
        )?;
        let next = Arc::new(Checked::new(Memory::of(slots.snapshot(), regions)));
        let old = {
            let mut current = self.0.current.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, next)
        };
        drop(slots);
        // Dropped without locks, since it may unmap removed regions.
        drop(old);
        Ok(result)
    }
}

impl<R: SlotRegion> Memory<R> {
    /// Creates constant memory from these regions, in any order. Fails if two share a page or an id.
    pub fn new(regions: impl IntoIterator<Item = Arc<R>>) -> Result<Self, SlotError> {
        let memory = SlotMemory::default();
        memory.commit(|tx| regions.into_iter().try_for_each(|region| tx.share(region)))?;
        Ok(memory.current().raw().clone())
    }
}

impl<R: SlotRegion> SlotTransaction<'_, '_, R> {
    /// Adds a region. Fails if its slot breaks one of the [rules](slat_slots::Rule), for example if it shares a
    /// page or the id with another.
    pub fn insert(&mut self, region: R) -> Result<(), SlotError> {
        self.share(Arc::new(region))
    }

    /// Adds a region that other memory also uses.
    pub fn share(&mut self, region: Arc<R>) -> Result<(), SlotError> {
        self.slots.create(region.slot())?;
        self.regions.push(region);
        Ok(())
    }

    /// Removes slot `id`. Its memory is unmapped when the returned region and the last snapshot with it are
    /// dropped.
    pub fn remove(&mut self, id: SlotId) -> Result<Arc<R>, SlotError> {
        self.slots.delete(id)?;
        let place = self.regions.iter().position(|region| region.slot().id == id);
        Ok(self.regions.remove(place.expect("each slot came with its region")))
    }
}

impl<R: SlotRegion> GuestAddressSpace for SlotMemory<R> {
    type M = Checked<R>;
    type T = Arc<Checked<R>>;

    fn memory(&self) -> Arc<Checked<R>> {
        self.current()
    }
}
