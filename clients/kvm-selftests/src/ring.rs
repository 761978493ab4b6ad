//! A vCPU's dirty ring in memory that it shares with its VMM. [`Ring::fill`] copies entries from the engine's ring when
//! the vCPU exits. The engine's ring has as many entries, and keeps each until the VMM has collected it and reset it,
//! so this ring always has room.

use crate::abi;
use crate::process_host::Engine;
use crate::shared::Shared;
use kvm_bindings::kvm_dirty_gfn;
use slat::{DirtyError, Idle, VcpuId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Flags of an entry: published for the VMM; collected by the VMM.
const DIRTY: u32 = 1;
const RESET: u32 = 2;

/// The dirty ring of one vCPU, in shared memory.
pub struct Ring {
    entries: *mut kvm_dirty_gfn,
    /// Keeps the memory of the entries mapped.
    _shared: Arc<Shared>,
    size: usize,
    published: usize,
    reset: usize,
}

// SAFETY: the entries are shared memory, which stays mapped.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring of this many entries, in new memory.
    pub fn new(shared: Arc<Shared>, size: usize) -> Self {
        Self { entries: shared.page(abi::RING_PAGE), _shared: shared, size, published: 0, reset: 0 }
    }

    /// Publishes the entries that the engine has logged since the last call.
    pub fn fill(&mut self, engine: &Engine, idle: &mut Idle, vcpu: VcpuId) -> Result<(), DirtyError> {
        engine.collect_ring(idle, vcpu, |page| {
            self.publish(u32::from(page.space.0) << 16 | page.slot.0, page.page);
        })?;
        Ok(())
    }

    fn publish(&mut self, slot: u32, offset: u64) {
        assert!(self.published - self.reset < self.size, "the engine has told more than it has room for");
        // SAFETY: within the ring; the VMM leaves an entry without flags alone.
        unsafe {
            let entry = self.entries.add(self.published % self.size);
            (&raw mut (*entry).slot).write(slot);
            (&raw mut (*entry).offset).write(offset);
        }
        self.flags(self.published).store(DIRTY, Ordering::Release);
        self.published += 1;
    }

    /// The number of entries that the VMM has collected, in order.
    pub fn collected(&self) -> usize {
        let is_collected = |&at: &usize| self.flags(at).load(Ordering::Acquire) & RESET != 0;
        (self.reset..self.published).take_while(is_collected).count()
    }

    /// Frees this many entries, after a reset.
    pub fn free(&mut self, entries: usize) {
        for at in self.reset..self.reset + entries {
            self.flags(at).store(0, Ordering::Relaxed);
        }
        self.reset += entries;
    }

    fn flags(&self, at: usize) -> &AtomicU32 {
        // SAFETY: within the ring; both sides use atomic operations.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.entries.add(at % self.size)).flags) }
    }
}
