//! How a fault ends.

use crate::addr::Level;
use crate::host::HostError;
use crate::table::pool::NoMemory;
use crate::trace::FaultResult;

/// How a fault was dealt with: the guest may try again after [`Done::Mapped`], [`Done::Fixed`] and [`Done::Spurious`].
///
/// An x86 processor forgets the translation that it faults on. Others need not: an arm64 one may remember that a permission was
/// missing, a RISC-V one that nothing was mapped, too. There, forget the page on this processor alone (TLBI by IPA, not
/// broadcast; `HFENCE.GVMA`) before the guest tries again, or it may fault for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Done {
    /// A page was mapped, of this size.
    Mapped(Level),
    /// The permission was given back, in place.
    Fixed,
    /// Another vCPU had dealt with it already.
    Spurious,
    /// No memslot is there, or it is read-only and this is a store, or it does not execute and this is a fetch: emulate the access.
    Mmio,
    /// A store to a frame whose [stores are tracked](crate::memslots::Memslots::track_writes): nothing was done. Emulate the
    /// store by [`Memslots::emulate_store`](crate::memslots::Memslots::emulate_store), which tells the listeners.
    WriteTracked,
    /// A store, while this vCPU's [dirty ring](crate::DirtyLog::ring) is full: nothing was done. Again when the VMM has
    /// harvested it; it is the only vCPU that has to wait.
    RingFull,
    /// The guest made the access as to private memory, or as to shared memory, and the frame is of the other kind
    /// ([`Vcpu::fault_as`](crate::Vcpu::fault_as)): nothing was done. The VMM converts the frame
    /// ([`Memslots::set_private`](crate::memslots::Memslots::set_private)), or ends the guest. (`KVM_EXIT_MEMORY_FAULT`.)
    MemoryFault {
        /// Whether the access was to private memory.
        private: bool,
    },
    /// The page is [on its way](HostError::Pending), and nothing was done. The vCPU waits for its
    /// [token](crate::Vcpu::pending_token): it may run something else of the guest meanwhile, or nothing. It is woken when the token is
    /// ready, and then [takes](crate::Vcpu::take_ready) it and tries again. The access may also be tried again at any time before.
    Pending,
    /// The page behind the fault's guest address has to be [provided](HostError::NeedsPage) by the caller. Nothing was done, and
    /// the vCPU waits for no token. Again when the host has the page.
    NeedsPage,
}

/// Why a fault cannot be dealt with. The VM goes on; what becomes of the vCPU is its owner's business.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FaultError {
    /// The host has no page for it.
    Host(HostError),
    /// No memory for table pages.
    NoMemory,
}

errors! { FaultError:
    Self::Host(error) => "{error}";
    Self::NoMemory => "{NoMemory}";
}

impl From<HostError> for FaultError {
    fn from(error: HostError) -> Self {
        Self::Host(error)
    }
}

impl From<NoMemory> for FaultError {
    fn from(_: NoMemory) -> Self {
        Self::NoMemory
    }
}

impl From<Done> for FaultResult {
    fn from(done: Done) -> Self {
        match done {
            Done::Mapped(level) => Self::Mapped(level),
            Done::Fixed => Self::Fixed,
            Done::Spurious => Self::Spurious,
            Done::Mmio => Self::Mmio,
            Done::RingFull
            | Done::MemoryFault { .. }
            | Done::WriteTracked
            | Done::Pending
            | Done::NeedsPage => Self::Deferred,
        }
    }
}
