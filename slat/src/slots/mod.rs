//! Memslots: which guest frames exist, and where in the host's address space they live (the scalable memslots series).
//!
//! ```text
//! gfn ──by_gfn──▶ slot ──▶ hva          faults; slots never overlap here
//! hva range ──by_hva──▶ gfn ranges       notify; slots may overlap here (aliases)
//! id ──by_id──▶ slot                    slot operations
//! ```
//! All three are copy-on-write B+trees; together they are one version of the slots. A change costs O(log n)
//! whatever their number: the next version shares every node with the last that the change did not touch.
//! Readers hold a section of the read side, never block, and see one version, never a mixture.
//!
//! | file | idea |
//! |---|---|
//! | [`rules`] | what may be asked for, and why it may be refused: KVM's rules, in KVM's order |
//! | [`map`] | [`SlotMap`]: the slots of one address space, by themselves |
//! | `version` | one version of them, to be asked |
//! | [`transaction`] | [`Transaction`]: operations on the next version, in the making |
//! | `publish` | versions as readers see them; when the nodes of old ones may be reused |
//! | [`hint`] | [`Hint`]: the slot found last, beside each leaf table and where devices ask again; the same for notify; a slot in two words |
//! | `behind` | what is behind a range of host addresses, slot by slot |
//! | `bitmap` | the dirty log of a slot |
//! | [`memslots`](crate::memslots) | [`Memslots`](crate::memslots::Memslots): a transaction on a running VM; snapshots |
//! | `tree`, `pool` | the B+tree; memory for its nodes, which never fails half-way |
//!
//! # Decisions
//! * **Trees** instead of a sorted array, of which each change copies every slot, or two sets of everything. Readers see one
//!   version, and a change costs O(log n).
//! * **Ids are a third tree**, not a hash table: only slot operations look ids up, and a million ids are four nodes deep.
//! * **A version knows whether any two slots share host addresses.** Where none do, a host address is found as a guest frame is.
//! * **Whether a large page fits** is computed from four numbers of the slot, not counted for each 2 MiB and 1 GiB as in KVM: there
//!   is nothing to allocate, or to compute again after a move.
//! * **Delete and move are one publication**, inside an invalidation of the frames. KVM publishes two sets: one with the slot marked
//!   invalid, then another.

pub(crate) mod behind;
pub(crate) mod bitmap;
pub mod hint;
pub mod map;
mod pool;
pub(crate) mod publish;
#[cfg(test)]
mod rollback_tests;
pub mod rules;
pub mod transaction;
mod tree;
#[cfg(test)]
mod tree_tests;
pub(crate) mod version;

pub use hint::Hint;
pub use map::SlotMap;
pub use rules::{Change, Limits, Region, Rule, SlotError};
pub use transaction::Transaction;

use crate::addr::{Gfn, Hva, PAGE_SHIFT, Span};
use core::fmt;

/// A memslot's name in its address space, chosen by the user; sparse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(pub u32);

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An address space of a VM: memslots and tables of its own. Number 0 is the one that every VM has and every
/// vCPU starts in; on x86, number 1 is what a vCPU sees in system management mode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SpaceId(pub u8);

/// A memslot: a range of guest frames, and the host address behind it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    /// Its name.
    pub id: SlotId,
    /// The guest frames.
    pub gfns: Span<Gfn>,
    /// The host address of the first of them; a multiple of 4 KiB.
    pub hva: Hva,
    /// Whether guest writes are refused (they surface as MMIO).
    pub readonly: bool,
    /// Whether guest writes are logged, page by page ([`Memslots::dirty`](crate::memslots::Memslots::dirty)).
    pub log_dirty: bool,
}

impl Slot {
    /// A writable slot of `pages` frames from `gfn`, backed from `hva` on.
    pub fn new(id: SlotId, gfn: Gfn, pages: u64, hva: Hva) -> Self {
        Self { id, gfns: Span::sized(gfn, pages), hva, readonly: false, log_dirty: false }
    }

    /// The same slot, read-only.
    #[must_use]
    pub fn readonly(self) -> Self {
        Self { readonly: true, ..self }
    }

    /// The same slot, logging writes.
    #[must_use]
    pub fn log_dirty(self) -> Self {
        Self { log_dirty: true, ..self }
    }

    /// The host address of `gfn`, which lies in the slot.
    #[inline(always)]
    pub fn hva_of(&self, gfn: Gfn) -> Hva {
        Hva(self.hva.0 + ((gfn.0 - self.gfns.start.0) << PAGE_SHIFT))
    }

    /// The host addresses of the whole slot.
    #[inline]
    pub fn hvas(&self) -> Span<Hva> {
        Span::sized(self.hva, self.gfns.len() << PAGE_SHIFT)
    }

    /// The same slot from another frame on.
    fn at(self, gfn: Gfn) -> Self {
        Self { gfns: Span::sized(gfn, self.gfns.len()), ..self }
    }
}
