//! Processors that vCPUs share: fewer than vCPUs, each with a TLB that tells VMs apart by a tag.
//!
//! ```text
//! vCPU 0 ─┐                          ┌─ tag (VM 0, space 0): translations, links
//! vCPU 1 ─┼─▶ one at a time ─▶ CPU 0 ┤
//! vCPU 2 ─┘   (a stay)               └─ tag (VM 1, space 0): translations, links
//! ```
//! What a vCPU caches stays on the processor when the vCPU leaves, as on hardware. Other vCPUs of the VM use it there, and
//! so does this vCPU when it comes back. Nothing here forgets on its own: a vCPU that comes back after it has been
//! elsewhere relies on [`Vcpu::enter`](slat::Vcpu::enter), which forgets where [`Translations::cpu`] has changed.
//!
//! A step of a vCPU holds the caches that it uses, so a machine of such processors can [broadcast](Processor::forget) flushes.

use crate::cpu::Caches;
use slat::{CpuId, Gfn, SpaceId, Span, Translations};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::DerefMut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a processor tells translations apart by: an ASID, a VMID. vCPUs of one VM share it in each address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tag {
    /// The VM, by a number that no other VM on these processors has.
    pub vm: u32,
    /// The address space that the vCPU is in.
    pub space: SpaceId,
}

/// The caches under one tag. A step of a vCPU holds them.
type Tagged = Arc<Mutex<Caches>>;

/// One processor, for [`Cpu::run_on`](crate::Cpu::run_on): one vCPU at a time.
pub struct Processor {
    id: CpuId,
    taken: Mutex<()>,
    tags: Mutex<BTreeMap<Tag, Tagged>>,
}

/// A lock that a vCPU's panic left behind: what it guards is as good as before.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Processor {
    /// Processor number `id`, with nothing cached.
    pub fn new(id: CpuId) -> Self {
        Self { id, taken: Mutex::default(), tags: Mutex::default() }
    }

    /// Its number.
    pub fn id(&self) -> CpuId {
        self.id
    }

    /// Forgets `gfns` under every tag of VM number `vm`: this processor's part of a flush that hardware broadcasts. Waits for
    /// the step that a vCPU is making here, and for nothing else. On return the accesses that it made by what is forgotten
    /// are over.
    ///
    /// A host whose processors broadcast does this on each of them: [`Host::broadcast_flush`](slat::Host::broadcast_flush).
    pub fn forget(&self, vm: u32, gfns: Span<Gfn>) {
        let tags = lock(&self.tags);
        for (_, caches) in tags.iter().filter(|(tag, _)| tag.vm == vm) {
            lock(caches).flush(gfns);
        }
    }

    /// A vCPU's stay, under `tag`. Waits while another vCPU stays here. Not for a thread that is in a section, or that
    /// stays on a processor already.
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

/// Where a vCPU's caches are while it is in the guest.
pub(crate) trait Home: Translations {
    /// For one step, or one flush.
    fn caches(&mut self) -> impl DerefMut<Target = Caches>;
}

/// The vCPU's own: they go where it goes.
impl Home for Caches {
    fn caches(&mut self) -> impl DerefMut<Target = Caches> {
        self
    }
}

/// See [`Processor::stay`].
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
