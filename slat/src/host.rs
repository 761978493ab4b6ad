//! What the engine asks of the world: one trait.
//!
//! A host turns a host-virtual address into a frame, kicks vCPUs out of the guest, and lends memory for tables.
//! `slat-mm` is such a host; `examples/embed.rs` shows the smallest one.

use crate::addr::{Hva, Level, Pfn};
use crate::sync::idle::Idle;
use crate::table::format::Access;
use crate::table::memory::TableMemory;

/// A vCPU's number in its VM, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VcpuId(pub u32);

/// What the host maps at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostPage {
    /// The frame of the very 4 KiB that was asked for; one that the table's format can name.
    pub pfn: Pfn,
    /// How large a page the host maps there: frame and address are congruent, and all of it is mapped alike.
    /// [`Level::K4`] where the host does not know. A page larger than any leaf of the format is mapped in smaller ones.
    pub level: Level,
    /// Whether the guest may write to it now.
    pub writable: bool,
}

/// Why the host has no page to give.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HostError {
    /// Nothing is mapped there, or not for this kind of access.
    Fault,
    /// Out of memory.
    NoMemory,
    /// The page's memory is broken.
    Poisoned,
    /// The page could not be read back from where the host had put it. Another try may succeed.
    Io,
}

impl core::fmt::Display for HostError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Fault => "the host maps nothing there for this access",
            Self::NoMemory => "the host is out of memory",
            Self::Poisoned => "the host's memory is broken there",
            Self::Io => "the host could not read the page back",
        })
    }
}

impl core::error::Error for HostError {}

/// The primary MMU under a VM, and the machine around it.
///
/// **The contract.** Before the host takes a page away from an address, moves it, or withdraws write
/// permission, it calls [`Vm::invalidate`](crate::Vm::invalidate) for the range, settles the debt, changes its
/// own entry, and only then ends the invalidation; it frees the frame after that. What
/// [`lookup`](Self::lookup) and [`resolve`](Self::resolve) return must be what its entry says *now*. Under
/// that contract no vCPU ever uses a page that the host has taken back.
///
/// **Dirty.** The engine does not report the Dirty bits of what it unmaps: a host takes a page that it has given as
/// writable for written.
pub trait Host: TableMemory {
    /// What is mapped at `hva` for this access, if that can be said without sleeping. The engine asks inside a
    /// section of the read side: no lock that can be held while notify is called, no allocation. The default
    /// sends every fault to [`resolve`](Self::resolve).
    #[inline]
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        let _ = (hva, access);
        None
    }

    /// Makes the page at `hva` present for this access and says where it is. May sleep, and may itself invalidate
    /// (breaking a copy-on-write share does). A page returned for [`Access::Write`] is writable.
    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError>;

    /// Makes vCPU `vcpu` leave the guest, or answer from inside it, soon: an IPI, a signal. Software vCPUs poll
    /// [`InGuest::kicked`](crate::InGuest::kicked) and need nothing more.
    fn kick(&self, vcpu: VcpuId) {
        let _ = vcpu;
    }
}
