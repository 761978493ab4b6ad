//! The result of a fault: the next step of the vCPU.

use crate::trace::FaultResult;
use crate::{HostError, Level, NoMemory, Token};

/// The vCPU's next step after a fault.
///
/// ```
/// # use slat::*;
/// # fn emulate(_: Gpa, _: Access) {}
/// # fn run<F: Format, H: Host>(vcpu: &mut Vcpu<'_, F, H>, idle: &mut Idle, fault: Fault) -> Result<Option<Leave>, FaultError> {
/// match vcpu.fault(idle, fault)? {
///     Next::Resume(_) => {}                                     // the guest repeats the access
///     Next::Emulate(_) => emulate(fault.gpa, fault.access),     // a device, a ROM, a tracked store
///     Next::Leave(why) => return Ok(Some(why)),                 // the VMM acts; then the guest repeats the access
/// }
/// # Ok(None)
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the guest may only repeat the access after `Resume`"]
pub enum Next {
    /// The guest repeats the access.
    ///
    /// An x86 processor forgets the translation that faulted. Others need not: an arm64 processor may cache a missing
    /// permission, and a RISC-V one also a missing page. There, flush the page on this processor alone (TLBI by IPA, not
    /// broadcast; `HFENCE.GVMA`) before the guest repeats it, or the guest may fault forever.
    Resume(Resume),
    /// The VMM emulates the access, and the guest goes on after it.
    Emulate(Emulate),
    /// The engine did nothing. The VMM acts first; then the guest repeats the access.
    Leave(Leave),
}

/// The work of a fault after which the guest repeats the access: see [`Next::Resume`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resume {
    /// A page of this size was mapped.
    Mapped(Level),
    /// The permission was restored in place.
    Fixed,
    /// Another vCPU had already handled the fault.
    Spurious,
}

/// Why an access is to be emulated: see [`Next::Emulate`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Emulate {
    /// No memslot is there: a device.
    NoMemory,
    /// The memslot forbids the access: a store to a read-only one, or a fetch from one without execute permission.
    ReadOnly,
    /// A store to a frame whose [stores are tracked](crate::GuestSpace::track_writes). Make the store by
    /// [`GuestSpace::emulate_store`](crate::GuestSpace::emulate_store), which calls the listeners.
    Tracked,
}

/// Why the vCPU leaves its run loop: see [`Next::Leave`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Leave {
    /// A store while this vCPU's [dirty ring](crate::DirtyLog::ring) is full. The VMM harvests the ring. Other vCPUs
    /// need not wait.
    RingFull,
    /// The access was made as to private memory and the frame is shared or has no memslot, or as to shared memory and
    /// the frame is private ([`Vcpu::fault_as`](crate::Vcpu::fault_as)). The VMM converts the frame
    /// ([`GuestSpace::set_private`](crate::GuestSpace::set_private)) or ends the guest. (`KVM_EXIT_MEMORY_FAULT`.)
    MemoryFault {
        /// Whether the access was to private memory.
        private: bool,
    },
    /// The page is [on its way](HostError::Pending). The vCPU waits for its token, and may run other code of the guest
    /// meanwhile. When the token is ready, the engine kicks the vCPU, which then [takes](crate::Vcpu::take_ready) the
    /// token and repeats the access. It may also repeat it earlier.
    Pending(Token),
    /// The caller must [provide](HostError::NeedsPage) the page behind the fault's guest address. The vCPU waits for no
    /// token. Repeat the access when the host has the page.
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

/// A [`Next`] without the token, which the vCPU keeps: it fits a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Done {
    Mapped(Level),
    Fixed,
    Spurious,
    Emulate(Emulate),
    RingFull,
    MemoryFault { private: bool },
    Pending,
    NeedsPage,
}

impl Done {
    #[inline(always)]
    pub(super) fn next(self, token: Token) -> Next {
        match self {
            Self::Mapped(level) => Next::Resume(Resume::Mapped(level)),
            Self::Fixed => Next::Resume(Resume::Fixed),
            Self::Spurious => Next::Resume(Resume::Spurious),
            Self::Emulate(why) => Next::Emulate(why),
            Self::RingFull => Next::Leave(Leave::RingFull),
            Self::MemoryFault { private } => Next::Leave(Leave::MemoryFault { private }),
            Self::Pending => Next::Leave(Leave::Pending(token)),
            Self::NeedsPage => Next::Leave(Leave::NeedsPage),
        }
    }
}

impl From<Done> for FaultResult {
    fn from(done: Done) -> Self {
        match done {
            Done::Mapped(level) => Self::Mapped(level),
            Done::Fixed => Self::Fixed,
            Done::Spurious => Self::Spurious,
            Done::Emulate(Emulate::NoMemory | Emulate::ReadOnly) => Self::Mmio,
            Done::Emulate(Emulate::Tracked)
            | Done::RingFull
            | Done::MemoryFault { .. }
            | Done::Pending
            | Done::NeedsPage => Self::Deferred,
        }
    }
}
