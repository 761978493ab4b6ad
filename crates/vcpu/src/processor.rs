//! Processors that vCPUs share: fewer than vCPUs, each with a TLB whose tags distinguish VMs.
//!
//! ```text
//! vCPU 0 ─┐                          ┌─ tag (VM 0, space 0): translations, links
//! vCPU 1 ─┼─▶ one at a time ─▶ CPU 0 ┤
//! vCPU 2 ─┘   (a stay)               └─ tag (VM 1, space 0): translations, links
//! ```
//! Like on hardware, a vCPU's cached translations stay on the processor when the vCPU leaves. Other vCPUs of
//! the VM use them there, and so does this vCPU when it returns. The processor never flushes on its own: a vCPU
//! that returns after it has been elsewhere relies on [`Vcpu::enter`](slat::Vcpu::enter), which flushes if
//! [`Translations::cpu`] has changed.
//!
//! A vCPU holds the caches during each step, so a machine of such processors can [broadcast](Processor::forget)
//! flushes.

use crate::caches::Caches;
use slat::{CpuId, Gfn, SpaceId, Span, Translations};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::DerefMut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tag of cached translations, like an ASID or VMID. vCPUs of one VM share it in each address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tag {
    /// Number of the VM, unique on these processors.
    pub vm: u32,
    /// The vCPU's address space.
    pub space: SpaceId,
}

/// The caches under one tag. A vCPU holds them during a step.
type Tagged = Arc<Mutex<Caches>>;

/// One processor, for [`Cpu::run_on`](crate::Cpu::run_on); one vCPU at a time.
pub struct Processor {
    id: CpuId,
    taken: Mutex<()>,
    tags: Mutex<BTreeMap<Tag, Tagged>>,
}

/// Locks also after a vCPU's panic: the guarded value is still valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Processor {
    /// Creates processor number `id`, with nothing cached.
    pub fn new(id: CpuId) -> Self {
        Self { id, taken: Mutex::default(), tags: Mutex::default() }
    }

    /// Returns its number.
    pub fn id(&self) -> CpuId {
        self.id
    }

    /// Flushes `gfns` under every tag of VM number `vm`: this processor's part of a broadcast flush. Waits only
    /// for the step that a vCPU is making here. When this returns, accesses by the flushed translations have
    /// ended.
    ///
    /// A host whose processors broadcast calls this on each of them:
    /// [`Host::broadcast_flush`](slat::Host::broadcast_flush).
    pub fn forget(&self, vm: u32, gfns: Span<Gfn>) {
        let tags = lock(&self.tags);
        for (_, caches) in tags.iter().filter(|(tag, _)| tag.vm == vm) {
            lock(caches).flush(gfns);
        }
    }

    /// Starts a vCPU's stay, under `tag`. Waits while another vCPU stays here. Do not call it inside a section,
    /// or during another stay.
    pub(crate) fn stay(&self, tag: Tag) -> Stay<'_> {
        let taken = lock(&self.taken);
        let caches = lock(&self.tags).entry(tag).or_default().clone();
        Stay { cpu: self.id, caches, _taken: taken }
    }
}

impl fmt::Debug for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Processor").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The place of a vCPU's caches while it is in the guest.
pub(crate) trait Home: Translations {
    /// Locks the caches for one step or one flush.
    fn caches(&mut self) -> impl DerefMut<Target = Caches>;
}

/// The vCPU's own caches, which move with it.
impl Home for Caches {
    fn caches(&mut self) -> impl DerefMut<Target = Caches> {
        self
    }
}

/// A vCPU's stay on a processor.
pub(crate) struct Stay<'p> {
    cpu: CpuId,
    caches: Tagged,
    _taken: MutexGuard<'p, ()>,
}

impl Home for Stay<'_> {
    fn caches(&mut self) -> impl DerefMut<Target = Caches> {
        lock(&self.caches)
    }
}

impl Translations for Stay<'_> {
    fn cpu(&self) -> CpuId {
        self.cpu
    }

    fn flush_all(&mut self) {
        self.caches().flush_all();
    }

    fn flush(&mut self, gfns: Span<Gfn>) {
        self.caches().flush(gfns);
    }
}
