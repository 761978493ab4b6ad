//! What a fault of L2 comes to, meets on its way, and remembers.

use super::format::L1Fault;
use super::under::Upper;
use super::walk::{L1Leaf, L1Stop};
use crate::addr::{Gfn, Gpa, Hva, Level, Pfn, Span};
use crate::fault::Done;
use crate::host::HostPage;
use crate::notify::active::{Epoch, QuietNumber};
use crate::shadows::RowsOf;
use crate::slots::Slot;
use crate::table::entry::{Entry, Word};
use crate::table::format::{Access, Leaf};
use crate::table::memory::{ENTRIES, Node};
use crate::table::radix::At;

/// How an access of L2 was dealt with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum L2Done {
    /// As an access of L1's own to its address `gpa`, which is what T translates L2's address to. After [`Done::Mapped`] and
    /// [`Done::Spurious`] L2 may try again. Of [`Done::Mmio`] and [`Done::WriteTracked`] the VMM emulates the access, at `gpa`. That is
    /// also the answer where our tables cannot say what T does: L1 was offered more than this format has.
    Handled {
        /// How.
        done: Done,
        /// Where, in L1's memory.
        gpa: Gpa,
    },
    /// T refuses the access. L1 is told, by [`L1Format::injection`](crate::nested::L1Format::injection): L2's exit.
    ForL1(L1Fault),
}

/// What an attempt met.
pub(super) enum Met {
    Done(L2Done),
    /// Something has changed: again.
    Changed,
    /// An invalidation covers what is needed: again when it has ended.
    Covered,
    /// T cannot be walked without sleeping.
    Table(L1Stop),
    /// The host has to be asked in a way that may sleep.
    Ask(Ask),
    /// Another page than that of the leaf is behind the frame, and the host may have told no one.
    Another(Span<Gfn>),
}

/// A question to the host, and what had been announced when it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ask {
    pub(super) gpa: Gpa,
    pub(super) hva: Hva,
    pub(super) access: Access,
    pub(super) epoch: Epoch,
    pub(super) newest: Word,
}

/// What F1 to F6 have found.
pub(super) struct Found<'a> {
    pub(super) at: At<'a>,
    pub(super) leaf: L1Leaf,
    pub(super) slot: Slot,
    /// As large as it is to be mapped.
    pub(super) page: HostPage,
    pub(super) stores: bool,
    pub(super) gpa: Gpa,
}

/// What the next fault may take the short way by: see [`super::quick`].
#[derive(Debug)]
pub(super) struct Quick<'vm> {
    pub(super) number: QuietNumber,
    pub(super) line: u64,
    /// Of L2's 2 MiB: the first frame over 512.
    pub(super) tag: u64,
    /// The table of the shadow, and its rows. There as long as the line stands.
    pub(super) table: Node,
    pub(super) rows: RowsOf,
    /// T's entry for the first of them.
    pub(super) of_t: Hva,
    pub(super) upper: Upper,
    pub(super) slot: Slot,
    /// The same of L1's frames that hints are at hand for.
    pub(super) hints: Option<(u64, &'vm [Entry; ENTRIES])>,
}

/// A leaf of `level` around a frame, as the very page of that frame.
pub(super) fn very_page(leaf: Leaf, gfn: Gfn, level: Level) -> Leaf {
    Leaf { pfn: Pfn(leaf.pfn.0 + (gfn.0 & (level.pages() - 1))), ..leaf }
}
