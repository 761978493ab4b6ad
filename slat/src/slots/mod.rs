//! Memslots: which guest frames exist, and where in the host's address space they live (the scalable memslots series).
//!
//! The slots of one address space, their rules and transactions are the crate [`slat_slots`]: a version of them is three copy-on-write
//! trees, by frame, by host address and by id. Here is what makes them the memslots of a running VM: versions are published to vCPUs
//! that fault meanwhile, their nodes are freed after grace periods, and slots have dirty logs.
//!
//! | file | idea |
//! |---|---|
//! | `publish` | versions as readers see them; when the nodes of old ones may be reused |
//! | [`hint`] | [`Hint`]: the slot found last, beside each leaf table and where devices ask again; the same for notify |
//! | `behind` | what is behind a range of host addresses, slot by slot |
//! | `bitmap` | the dirty log of a slot |
//! | `watched`, `holds` | which frames have their stores told; which frames the VMM, or hardware, holds |
//! | [`memslots`](crate::memslots) | [`Memslots`](crate::memslots::Memslots): a transaction on a running VM; snapshots |
//!
//! # Decisions
//! * **Whether a large page fits** is computed from four numbers of the slot, not counted for each 2 MiB and 1 GiB as in KVM: there
//!   is nothing to allocate, or to compute again after a move.
//! * **Delete and move are one publication**, inside an invalidation of the frames. KVM publishes two sets: one with the slot marked
//!   invalid, then another.

pub(crate) mod behind;
pub(crate) mod bitmap;
pub mod hint;
pub(crate) mod holds;
pub(crate) mod publish;
pub(crate) mod watched;

pub use hint::Hint;
pub use slat_slots::{Change, CommitError, Limits, Region, Rule, Slot, SlotError, SlotId};

use bitmap::Bitmap;

/// [`slat_slots::SlotMap`], with the engine's dirty logs: slots without a VM.
pub type SlotMap = slat_slots::SlotMap<Bitmap>;

/// [`slat_slots::Transaction`], with the engine's dirty logs.
pub type Transaction<'t> = slat_slots::Transaction<'t, Bitmap>;

/// One version of the slots, held still for reading during `'g`.
pub(crate) type SlotsVersion<'g> = slat_slots::Version<'g, Bitmap>;

/// An address space of a VM: memslots and tables of its own. Number 0 is the one that every VM has and every
/// vCPU starts in; on x86, number 1 is what a vCPU sees in system management mode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SpaceId(pub u8);
