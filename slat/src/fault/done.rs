//! The result of a fault.

use crate::addr::Level;
use crate::host::HostError;
use crate::table::pool::NoMemory;
use crate::trace::FaultResult;

/// What a fault did. The guest may retry after [`Done::Mapped`], [`Done::Fixed`] and [`Done::Spurious`].
///
/// An x86 processor forgets the translation that faulted. Others need not: an arm64 processor may cache a missing
/// permission, and a RISC-V one also a missing page. There, flush the page on this processor alone (TLBI by IPA, not
/// broadcast; `HFENCE.GVMA`) before the guest retries, or the guest may fault forever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Done {
    /// A page of this size was mapped.
    Mapped(Level),
    /// The permission was restored in place.
    Fixed,
    /// Another vCPU had already handled the fault.
    Spurious,
    /// No memslot is there, or a store hit a read-only one, or a fetch hit one without execute permission: emulate the
    /// access.
    Mmio,
    /// A store to a frame whose [stores are tracked](crate::guest_space::GuestSpace::track_writes). Nothing was done.
    /// Emulate the store by [`GuestSpace::emulate_store`](crate::guest_space::GuestSpace::emulate_store), which calls the
    /// listeners.
    WriteTracked,
    /// A store while this vCPU's [dirty ring](crate::DirtyLog::ring) is full. Nothing was done. Retry after the VMM has
    /// harvested the ring. Other vCPUs need not wait.
    RingFull,
    /// The access was made as to private memory and the frame is shared, or the other way round
    /// ([`Vcpu::fault_as`](crate::Vcpu::fault_as)). Nothing was done. The VMM converts the frame
    /// ([`GuestSpace::set_private`](crate::guest_space::GuestSpace::set_private)) or ends the guest.
    /// (`KVM_EXIT_MEMORY_FAULT`.)
    MemoryFault {
        /// Whether the access was to private memory.
        private: bool,
    },
    /// The page is [on its way](HostError::Pending). Nothing was done. The vCPU waits for its
    /// [token](crate::Vcpu::pending_token), and may run other code of the guest meanwhile. When the token is ready, the
    /// engine kicks the vCPU, which then [takes](crate::Vcpu::take_ready) the token and retries. It may also retry
    /// earlier.
    Pending,
    /// The caller must [provide](HostError::NeedsPage) the page behind the fault's guest address. Nothing was done, and
    /// the vCPU waits for no token. Retry when the host has the page.
    NeedsPage,
}

/// Why a fault failed. The VM remains usable; the owner of the vCPU decides what happens to the vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FaultError {
    /// The host has no page for the access.
    Host(HostError),
    /// Memory for table pages is missing.
    NoMemory,
}

errors! { FaultError:
    Self::Host(error) => "{error}";
    Self::NoMemory => "{NoMemory}";
}

impl FaultError {
    /// Returns KVM's errno.
    ///
    /// ```
    /// use slat::{FaultError, HostError};
    /// assert_eq!(FaultError::NoMemory.errno(), 12, "ENOMEM");
    /// assert_eq!(FaultError::from(HostError::Poisoned).errno(), 133, "EHWPOISON");
    /// ```
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Host(error) => error.errno(),
            Self::NoMemory => 12,
        }
    }
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
