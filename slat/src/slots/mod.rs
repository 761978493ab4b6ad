//! Memslots: the guest frames that exist, and their host addresses (the scalable memslots series).
//!
//! The crate [`slat_slots`] has the slots of one address space, their rules and transactions. One version of them is
//! three copy-on-write trees: by frame, by host address, and by id. This module makes them the memslots of a running
//! VM: it publishes versions to vCPUs that fault meanwhile, frees old nodes after grace periods, and gives slots dirty
//! logs.
//!
//! | file | contents |
//! |---|---|
//! | `publish` | versions as readers see them; the reuse of nodes of old versions |
//! | [`hint`] | [`Hint`]: the slot found last, kept beside each leaf table and for device models; the same for invalidations |
//! | `behind` | the frames behind a range of host addresses, slot by slot |
//! | `bitmap` | the dirty log of a slot |
//! | `watched`, `holds` | frames whose stores go to listeners; frames that the VMM or hardware holds |
//! | [`memslots`](crate::memslots) | [`GuestSpace`](crate::GuestSpace): transactions on a running VM; snapshots |
//!
//! # Decisions
//! * **Whether a large page fits** is computed from four numbers of the slot. KVM instead keeps a count for each 2 MiB
//!   and 1 GiB. Here nothing must be allocated, or recomputed after a move.
//! * **Delete and move are one publication**, inside an invalidation of the frames. KVM publishes two sets: first one
//!   with the slot marked invalid, then the new one.

pub(crate) mod behind;
pub(crate) mod bitmap;
pub mod hint;
pub(crate) mod holds;
pub(crate) mod publish;
pub(crate) mod takings;
pub(crate) mod watched;

pub use hint::Hint;
pub use slat_slots::{Change, CommitError, Limits, Region, Rule, Slot, SlotError, SlotId};

use bitmap::Bitmap;

/// [`slat_slots::SlotMap`] with the engine's dirty logs, for use without a VM.
pub type SlotMap = slat_slots::SlotMap<Bitmap>;

/// [`slat_slots::Transaction`] with the engine's dirty logs.
pub type Transaction<'t> = slat_slots::Transaction<'t, Bitmap>;

/// One version of the slots, held for reading during `'g`.
pub(crate) type SlotsVersion<'g> = slat_slots::Version<'g, Bitmap>;

/// An address space of a VM, with its own memslots and tables. Every VM has number 0, and every vCPU starts there. On
/// x86, number 1 is that of system management mode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SpaceId(pub u8);
