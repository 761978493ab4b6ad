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
    pub(super) around: Around,
}

/// The pages that one fault maps together: eight, whose entries share a cache line in T and in the shadow. While L2
/// touches page after page, twice as many with each fault.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around {
    count: u64,
    /// The page after them.
    end: Gfn,
}

impl Default for Around {
    fn default() -> Self {
        Self { count: Self::LEAST, end: Gfn(u64::MAX) }
    }
}

impl Around {
    const LEAST: u64 = 8;
    const MOST: u64 = 64;

    /// Returns the pages for a fault on `g2`, all in its 2 MiB.
    pub(super) fn next(&mut self, g2: Gfn) -> Span<Gfn> {
        let is_next = g2 == self.end;
        self.count = if is_next { (self.count * 2).min(Self::MOST) } else { Self::LEAST };
        let start = Gfn(g2.0 & !(Self::LEAST - 1));
        let table = Span::sized(g2.base(Level::M2), Level::M2.pages());
        let pages = Span::sized(start, self.count).clamp(&table);
        self.end = pages.end;
        pages
    }

    /// After a fault on `g2` that has mapped this page alone.
    pub(super) fn beyond(self, g2: Gfn) -> Self {
        if g2 == self.end { Self { end: g2 + 1, ..self } } else { Self::default() }
    }
}

/// Returns a leaf of `level` as the 4 KiB leaf of exactly `gfn`.
pub(super) fn very_page(leaf: Leaf, gfn: Gfn, level: Level) -> Leaf {
    Leaf { pfn: Pfn(leaf.pfn.0 + (gfn.0 & (level.pages() - 1))), ..leaf }
}
