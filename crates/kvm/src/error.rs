//! Errors of a [`KvmVm`](crate::KvmVm).

use kvm_ioctls::Error;
use rustix::io::Errno;
use slat::{SlotError, SlotId};
use std::io;

/// Why an operation failed. It has changed nothing, unless the error says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvmError {
    /// A rule of memslots.
    #[error(transparent)]
    Slots(#[from] SlotError),
    /// KVM refused a memslot that the rules allow.
    #[error("KVM refuses memslot {}: {error}", id.0)]
    Kvm {
        /// Its id.
        id: SlotId,
        /// KVM's error.
        error: Error,
    },
    /// The operating system refused a call.
    #[error("{call}: {error}")]
    Os {
        /// The call.
        call: &'static str,
        /// Its error.
        error: io::Error,
    },
    /// The system has no memfd, so the arena has no file that can be mapped twice.
    #[error("the arena has no memfd")]
    NoFile,
    /// No memory for tables.
    #[error(transparent)]
    NoMemory(#[from] slat::table::NoMemory),
    /// Guest memory could not be read or written.
    #[error(transparent)]
    Memory(#[from] slat_mm::MmError),
    /// No memslot contains the address.
    #[error("no memslot at {0}")]
    NoSlot(slat::Gpa),
    /// The dirty log could not be harvested.
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
