//! Why an operation was refused.

use kvm_ioctls::Error;
use rustix::io::Errno;
use slat::{SlotError, SlotId};
use std::io;

/// Why an operation was refused. Nothing has changed then, unless an error says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvmError {
    /// The memslots' rules.
    #[error(transparent)]
    Slots(#[from] SlotError),
    /// KVM refused a memslot that the rules allow.
    #[error("KVM refuses memslot {}: {error}", id.0)]
    Kvm {
        /// Its number.
        id: SlotId,
        /// What KVM said.
        error: Error,
    },
    /// The operating system refused a call.
    #[error("{call}: {error}")]
    Os {
        /// The call.
        call: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// The arena has no file that could be mapped a second time: the system has no memfd.
    #[error("the arena has no memfd")]
    NoFile,
    /// No memory for tables.
    #[error(transparent)]
    NoMemory(#[from] slat::table::NoMemory),
    /// Guest memory could not be read or written.
    #[error(transparent)]
    Memory(#[from] slat_mm::MmError),
    /// No memslot is there.
    #[error("no memslot at {0}")]
    NoSlot(slat::Gpa),
    /// The dirty log could not be asked.
    #[error(transparent)]
    Dirty(#[from] slat::DirtyError),
    /// A pager thread could not serve a fault.
    #[error(transparent)]
    Fault(#[from] slat::FaultError),
}

impl KvmError {
    pub(crate) fn os(call: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Os { call, error: errno.into() }
    }

    pub(crate) fn io(call: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::Os { call, error }
    }
}
