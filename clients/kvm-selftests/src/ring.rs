//! A vCPU's dirty ring as its VMM sees it: in shared memory, filled from the engine's when the vCPU leaves the guest.
//!
//! KVM resets the entries that the VMM has collected, and no others. The engine resets all that were told. So some are armed before the
//! VMM has collected them, which is safe: it copies those pages later than that. But they still have places here when the engine has
//! room again; so what is told beyond the places waits, and the vCPU with it.

use crate::Engine;
use kvm_bindings::kvm_dirty_gfn;
use slat::{DirtyError, Idle, VcpuId};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

/// Flags of an entry: for the VMM; collected by the VMM.
const DIRTY: u32 = 1;
const RESET: u32 = 2;

/// See the module's header.
pub struct Ring {
    entries: *mut kvm_dirty_gfn,
    size: usize,
    published: usize,
    reset: usize,
    waiting: VecDeque<(u32, u64)>,
}

// SAFETY: the entries are shared memory, which its owner, the vCPU, unmaps after the last use.
unsafe impl Send for Ring {}

impl Ring {
    /// # Safety
    /// `entries` is zeroed memory for so many, mapped as long as the ring is used.
    pub unsafe fn new(entries: *mut kvm_dirty_gfn, size: usize) -> Self {
        Self { entries, size, published: 0, reset: 0, waiting: VecDeque::new() }
    }

    /// Whether entries wait for room.
    pub fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Publishes what the engine has logged since.
    pub fn fill(&mut self, engine: &Engine, idle: &mut Idle, vcpu: VcpuId) -> Result<(), DirtyError> {
        let name = |page: slat::DirtyPage| (u32::from(page.space.0) << 16 | page.slot.0, page.page);
        engine.collect_ring(idle, vcpu, |page| self.waiting.push_back(name(page)))?;
        self.publish();
        Ok(())
    }

    /// Takes back the entries that the VMM has collected. How many they are.
    pub fn take_collected(&mut self) -> usize {
        let before = self.reset;
        while self.reset < self.published && self.flags(self.reset).load(Ordering::Acquire) & RESET != 0 {
            self.flags(self.reset).store(0, Ordering::Relaxed);
            self.reset += 1;
        }
        self.publish();
        self.reset - before
    }

    fn publish(&mut self) {
        while self.published - self.reset < self.size {
            let Some((slot, offset)) = self.waiting.pop_front() else { return };
            // SAFETY: within the ring; the VMM leaves an entry without flags alone.
            unsafe {
                let entry = self.entries.add(self.published % self.size);
                (&raw mut (*entry).slot).write(slot);
                (&raw mut (*entry).offset).write(offset);
            }
            self.flags(self.published).store(DIRTY, Ordering::Release);
            self.published += 1;
        }
    }

    fn flags(&self, at: usize) -> &AtomicU32 {
        // SAFETY: within the ring; both sides use atomic operations.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.entries.add(at % self.size)).flags) }
    }
}
