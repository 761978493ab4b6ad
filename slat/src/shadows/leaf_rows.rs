//! Rows: for each leaf of a shadow, the L1 frame that it was composed from, and T's memory type. Four bytes.
//!
//! ```text
//! 31 30 | 29 ............ 0
//! type  | L1 frame               all ones: not known
//! ```
//! A flush by L1 compares them with T. A frame at the end of 4 TiB or beyond is not known, and its leaf is dropped at
//! each flush. All else that T says of a leaf is in the leaf.
//!
//! A fault writes a row while it has the entry frozen, and the leaf after it, so each row has one writer at a time. A
//! thread that meets a leaf reads its row, or a newer one.
//!
//! Two tables share a page of rows. While a table is linked, the list pointer of its page points to its rows.

use super::hints::SpareBlock;
use crate::sync::prim::{AtomicU32, Relaxed};
use crate::table::memory::{ENTRIES, Node};
use crate::table::radix::Beside;
use crate::{Gfn, Level, MemoryType, PAGE_SIZE, Span, TableMemory};
use alloc::vec::Vec;
use core::ptr::NonNull;

/// The row of a leaf. See the module's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LeafRow(u32);

const FRAME_BITS: u32 = 30;
/// Bytes of a table's rows.
const BYTES: usize = ENTRIES * size_of::<AtomicU32>();

impl LeafRow {
    const UNKNOWN: Self = Self(u32::MAX);

    /// The row of a leaf that T composes from `g1` with this type.
    #[inline(always)]
    pub(crate) fn new(g1: Gfn, memory: MemoryType) -> Self {
        if (g1.0 + 1) >> FRAME_BITS != 0 {
            return Self::UNKNOWN;
        }
        Self(g1.0 as u32 | (memory.bits() as u32) << FRAME_BITS)
    }

    /// Returns zero if the row is known and equal to these, without a branch.
    #[inline(always)]
    pub(crate) fn differs(self, g1: Gfn, memory: MemoryType) -> u64 {
        let of = g1.0 as u32 | (memory.bits() as u32) << FRAME_BITS;
        u64::from(self.0 ^ of) | (g1.0 + 1) >> FRAME_BITS
    }

    /// Whether the row is known and equals `of`.
    #[inline(always)]
    pub(crate) fn is(self, of: Self) -> bool {
        self == of && self != Self::UNKNOWN
    }

    /// The row of a part that begins `ahead` frames later.
    pub(super) fn part(self, ahead: u64) -> Self {
        let frame = u64::from(self.0 & ((1 << FRAME_BITS) - 1)) + ahead;
        if self == Self::UNKNOWN || (frame + 1) >> FRAME_BITS != 0 {
            return Self::UNKNOWN;
        }
        Self(self.0 + ahead as u32)
    }

    /// Whether the row is of `g1`, or not known.
    pub(crate) fn may_name(self, g1: Gfn) -> bool {
        self == Self::UNKNOWN || u64::from(self.0 & ((1 << FRAME_BITS) - 1)) == g1.0
    }

    /// Whether the row is of a frame in `g1s`, or not known.
    pub(super) fn may_lie_in(self, g1s: Span<Gfn>) -> bool {
        self == Self::UNKNOWN || g1s.contains(Gfn(u64::from(self.0 & ((1 << FRAME_BITS) - 1))))
    }

    /// Whether the row equals `of`, or is not known.
    #[inline(always)]
    pub(crate) fn may_be(self, of: Self) -> bool {
        self == of || self == Self::UNKNOWN
    }
}

/// The rows of one table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a>(&'a [AtomicU32]);

#[cfg(all(test, feature = "std", not(shuttle)))]
impl<'a> Rows<'a> {
    /// Rows without a table.
    pub(crate) fn apart(rows: &'a [AtomicU32]) -> Self {
        Self(rows)
    }
}

impl Rows<'_> {
    #[inline(always)]
    pub(crate) fn get(self, index: usize) -> LeafRow {
        // After the leaf, whose load is an Acquire one.
        LeafRow(self.0[index].load(Relaxed))
    }

    /// Called by the fault that has the entry frozen.
    #[inline(always)]
    pub(crate) fn set(self, index: usize, row: LeafRow) {
        // Before the leaf, whose exchange is a Release one.
        self.0[index].store(row.0, Relaxed);
    }

    /// Returns the rows of a table; `None` for a root.
    ///
    /// # Safety
    /// `node` is a table of a shadow, made of pages of `memory`, and stays linked for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn of<'a>(memory: &impl TableMemory, node: Node) -> Option<Rows<'a>> {
        // SAFETY: the caller promises a table of a shadow that stays linked for `'a`.
        unsafe { Some(RowsOf::table(memory, node)?.rows()) }
    }
}

/// The place of a table's rows, valid while it is linked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowsOf(Node);

impl RowsOf {
    /// Returns the place of a table's rows; `None` for a root.
    ///
    /// # Safety
    /// `node` is a table of a shadow, made of pages of `memory`, and linked.
    #[inline(always)]
    pub(crate) unsafe fn table(memory: &impl TableMemory, node: Node) -> Option<Self> {
        // SAFETY: the caller promises that the table is linked. The place was written before it was linked, and not
        // again before it is in a list.
        unsafe { node.note_in(memory) }.next.get().map(Self)
    }

    /// # Safety
    /// The table is linked for `'a`, or the caller is in a section or in a counted walk in which it was.
    #[inline(always)]
    pub(crate) unsafe fn rows<'a>(self) -> Rows<'a> {
        // SAFETY: half a page that only this table has.
        Rows(unsafe { self.0.page().cast::<[AtomicU32; ENTRIES]>().as_ref() })
    }
}

/// Half a page, for the rows of a table.
#[derive(Debug)]
pub(crate) struct Half(NonNull<u8>);

// SAFETY: memory that only its holder has.
unsafe impl Send for Half {}

impl Half {
    /// Returns both halves of a page that only the caller has. Clears it: a flush by L1 reads rows of entries without a
    /// leaf, too, and ignores them.
    pub(crate) fn split(page: Node) -> [Self; 2] {
        const { assert!(cfg!(loom) || 2 * BYTES == PAGE_SIZE as usize) };
        // SAFETY: both halves, and no others.
        unsafe { page.page().write_bytes(0, 2 * BYTES) };
        // SAFETY: inside the page.
        [Self(page.page()), Self(unsafe { page.page().add(BYTES) })]
    }

    /// Attaches the rows to a table that only the caller has.
    pub(super) fn hang(self, memory: &impl TableMemory, table: Node) {
        // SAFETY: only the caller has it.
        unsafe { table.note_in(memory) }.next.set(Some(Node::new(self.0)));
    }

    /// Detaches the rows of a table that no other thread reaches any more.
    pub(super) fn reclaim(memory: &impl TableMemory, table: Node) -> Option<Self> {
        // SAFETY: only the caller has it.
        let rows = unsafe { table.note_in(memory) }.next.take()?;
        Some(Self(rows.page()))
    }

    pub(super) fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// Whether this is the second half of the page whose first half is `first`.
    pub(super) fn completes(&self, first: &Self) -> bool {
        first.address().is_multiple_of(PAGE_SIZE as usize) && first.address() + BYTES == self.address()
    }

    /// Returns the page of which this is the first half; the caller has the second.
    pub(super) fn page(self) -> Node {
        Node::new(self.0)
    }
}

/// Spare rows of a vCPU, and spare blocks of hints. A fault links at most three tables with rows, and one block.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    pub(super) rows: Vec<Half>,
    pub(super) hints: Vec<SpareBlock>,
}

impl Spare {
    pub(super) const ENOUGH: usize = 3;

    /// Whether a fault has as much as it may need.
    #[inline(always)]
    pub(crate) fn is_enough(&self) -> bool {
        self.has_rows() && !self.hints.is_empty()
    }

    /// Whether a fault has as many rows as it may need.
    #[inline(always)]
    pub(crate) fn has_rows(&self) -> bool {
        self.rows.len() >= Self::ENOUGH
    }

    /// Returns the spare rows as an attacher for tables in `memory`.
    pub(crate) fn beside<'a, M: TableMemory>(&'a mut self, memory: &'a M, largest: Level) -> Hanging<'a, M> {
        Hanging(self, largest, memory)
    }
}

/// Attaches rows to tables that may have leaves: up to this level.
pub(crate) struct Hanging<'a, M>(&'a mut Spare, Level, &'a M);

impl<M: TableMemory> Beside for Hanging<'_, M> {
    fn hang(&mut self, node: Node, level: Level) {
        if level <= self.1
            && let Some(half) = self.0.rows.pop()
        {
            half.hang(self.2, node);
        }
    }

    fn reclaim(&mut self, node: Node) {
        self.0.rows.extend(Half::reclaim(self.2, node));
    }
}
