//! Results of a fault of L2, findings of its attempts, and what the vCPU remembers.

use super::l1_mapping::Upper;
use super::{L1Fault, L1Leaf, L1Stop};
use crate::active::QuietNumber;
use crate::fault::pursuit::{Answer, Pursuit};
use crate::shadows::RowsOf;
use crate::slots::publish::Reading;
use crate::table::{At, ENTRIES, Entry, Node};
use crate::{Gfn, Gpa, Hva, Leaf, Level, Next, Pfn, Slot, Span};

/// Result of an access of L2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum L2Next {
    /// Handled like an access of L1's own to its address `gpa`, to which T translates L2's address. After
    /// [`Next::Resume`] L2 may try again. For [`Next::Emulate`] the VMM emulates the access at `gpa`;
    /// [`Emulate::NoMemory`](crate::Emulate::NoMemory) also covers what this format cannot encode.
    Handled {
        /// Result for L1's address.
        next: Next,
        /// L1's address.
        gpa: Gpa,
    },
    /// T refuses the access: L2 exits to L1, with [`L1Format::injection`](crate::nested::L1Format::injection).
    ForL1(L1Fault),
}

/// Outcome of an attempt.
pub(super) enum Outcome {
    Done(L2Next),
    /// Something has changed: try again.
    Changed,
    /// An invalidation covers what is needed: try again when it has ended.
    Covered,
    /// T cannot be walked without sleeping.
    Table(L1Stop),
    /// The host has to be asked in a way that may sleep, for L1's address.
    Ask(Pursuit, Gpa),
    /// The frame has another page than the leaf maps, perhaps without an invalidation by the host.
    AnotherPage(Span<Gfn>),
}

/// Findings of F1 to F6.
pub(super) struct Found<'a> {
    pub(super) at: At<'a>,
    pub(super) leaf: L1Leaf,
    /// The version that has the slot.
    pub(super) slots: &'a Reading<'a>,
    /// With the size that is to be mapped.
    pub(super) answer: Answer,
    pub(super) stores: bool,
    pub(super) gpa: Gpa,
}

/// State for the short path of the next fault: see [`super::quick`].
pub(super) struct Quick<'vm> {
    pub(super) number: QuietNumber,
    pub(super) line: u64,
    /// The first frame of L2's 2 MiB, divided by 512.
    pub(super) tag: u64,
    /// The table of the shadow, and its rows. Valid while the line is unchanged.
    pub(super) table: Node,
    pub(super) rows: RowsOf,
    /// T's entry for the first of them.
    pub(super) of_t: Hva,
    pub(super) upper: Upper,
    pub(super) slot: Slot,
    /// The hints of 2 MiB of L1's frames, with the first frame divided by 512.
    pub(super) hints: Option<(u64, &'vm [Entry; ENTRIES])>,
}

/// Returns a leaf of `level` as the 4 KiB leaf of exactly `gfn`.
pub(super) fn very_page(leaf: Leaf, gfn: Gfn, level: Level) -> Leaf {
    Leaf { pfn: Pfn(leaf.pfn.0 + (gfn.0 & (level.pages() - 1))), ..leaf }
}
