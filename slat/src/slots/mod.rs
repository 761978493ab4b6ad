//! Memslots: which guest frames exist, and where in the host's address space they live (seed 001).
//!
//! ```text
//! gfn ──by_gfn──▶ slot ──▶ hva          faults; slots never overlap here
//! hva range ──by_hva──▶ slots ──▶ gfns   notify; slots may overlap here (aliases)
//! id ──by_id──▶ slot                    slot operations
//! ```
//! All three are copy-on-write B+trees (`tree`). A **set** is their three roots. There are two sets, as in the
//! seed: the published one, and the one that the next transaction writes; they share every node that the
//! transaction did not touch, so a change costs O(log n) whatever the number of slots. Readers hold a section of
//! the read side, never block, and see the old set or the new one, never a mixture.
//!
//! Publication happens inside an [`Invalidation`](crate::notify::Invalidation) of the gfn ranges that change
//! ([`transaction`]): a fault that looked a slot up beside it finds the word W moved and looks again.

mod pool;
pub mod transaction;
mod tree;
#[cfg(test)]
mod tree_tests;

pub use transaction::{Memslots, SlotError, Transaction};

use crate::addr::{Gfn, Hva, PAGE_SHIFT, Span};
use crate::sync::prim::{Acquire, AtomicU64, Mutex, Release};
use crate::sync::readside::{ReadSide, Seat};
use core::cell::UnsafeCell;
use tree::{Retired, Root, Tree};

/// A memslot's name, chosen by the user; sparse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(pub u32);

impl core::fmt::Display for SlotId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A memslot: a range of guest frames, and the host address behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Its name.
    pub id: SlotId,
    /// The guest frames.
    pub gfns: Span<Gfn>,
    /// The host address of the first of them; a multiple of 4 KiB.
    pub hva: Hva,
    /// Whether guest writes are refused (they surface as MMIO).
    pub readonly: bool,
}

const READONLY: u64 = 1 << 32;

impl Slot {
    /// A writable slot of `pages` frames from `gfn`, backed from `hva` on.
    pub fn new(id: SlotId, gfn: Gfn, pages: u64, hva: Hva) -> Self {
        Self { id, gfns: Span::sized(gfn, pages), hva, readonly: false }
    }

    /// The same slot, read-only.
    #[must_use]
    pub fn readonly(self) -> Self {
        Self { readonly: true, ..self }
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

    /// The frames of this slot that any of `hvas` lies in.
    fn gfns_of(&self, hvas: Span<Hva>) -> Span<Gfn> {
        let part = self.hvas().clamp(&hvas);
        if part.is_empty() {
            return Span::new(self.gfns.start, self.gfns.start);
        }
        let frame = |bytes: u64| self.gfns.start + (bytes >> PAGE_SHIFT);
        Span::new(frame(part.start.0 - self.hva.0), frame(part.end.0 - self.hva.0 + ((1 << PAGE_SHIFT) - 1)))
    }

    pub(crate) fn pack(&self) -> u64 {
        u64::from(self.id.0) | if self.readonly { READONLY } else { 0 }
    }

    pub(crate) fn unpack(gfns: Span<Gfn>, hva: Hva, packed: u64) -> Self {
        Self { id: SlotId(packed as u32), gfns, hva, readonly: packed & READONLY != 0 }
    }
}

type ByGfn = Tree<u64, Slot>;
/// First host address, then id, since slots may share addresses; the value is the slot's first gfn.
type ByHva = Tree<(u64, u32), u64, u64>;
type ById = Tree<u32, u64>;

/// One version of all slots.
#[derive(Clone, Copy)]
struct Set {
    by_gfn: Root<u64, Slot>,
    by_hva: Root<(u64, u32), u64, u64>,
    by_id: Root<u32, u64>,
}

/// The writer's side of the three trees.
struct Trees {
    by_gfn: ByGfn,
    by_hva: ByHva,
    by_id: ById,
}

/// What a transaction took out of the three trees.
type RetiredNodes = (Retired<u64, Slot>, Retired<(u64, u32), u64, u64>, Retired<u32, u64>);

impl Trees {
    /// Takes nodes back for later edits.
    ///
    /// # Safety
    /// A grace period has passed since the set that replaced them was published.
    unsafe fn reclaim(&mut self, (by_gfn, by_hva, by_id): RetiredNodes) {
        // SAFETY: from these trees; the caller's word.
        unsafe {
            self.by_gfn.reclaim(by_gfn);
            self.by_hva.reclaim(by_hva);
            self.by_id.reclaim(by_id);
        }
    }
}

/// The memslots of one VM.
pub(crate) struct SlotSets {
    sets: [UnsafeCell<Set>; 2],
    /// Which of the two is published.
    published: AtomicU64,
    /// The transaction mutex: outermost of our own locks.
    writer: Mutex<Trees>,
}

// SAFETY: the published set is only read; the other is written under `writer`, and only after a grace period
// has passed since it was the published one.
unsafe impl Sync for SlotSets {}

impl core::fmt::Debug for SlotSets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SlotSets").finish_non_exhaustive()
    }
}

impl SlotSets {
    pub(crate) fn new() -> Self {
        let trees = Trees { by_gfn: Tree::new(), by_hva: Tree::new(), by_id: Tree::new() };
        let set = Set { by_gfn: trees.by_gfn.root(), by_hva: trees.by_hva.root(), by_id: trees.by_id.root() };
        Self {
            sets: [UnsafeCell::new(set), UnsafeCell::new(set)],
            published: AtomicU64::new(0),
            writer: Mutex::new(trees),
        }
    }

    /// The published set, held by a section.
    fn read(&self) -> Set {
        // ORDER(publish): Acquire pairs with the Release in `publish`: the nodes are written before they are
        // seen. It also keeps a fault's second look at W below this load.
        let at = self.published.load(Acquire) as usize;
        // SAFETY: written before it was published, and not again until a grace period after it was replaced.
        unsafe { *self.sets[at].get() }
    }

    /// Makes `set` the published one.
    ///
    /// # Safety
    /// The caller holds the transaction mutex, and a grace period has passed since the last call.
    unsafe fn publish(&self, set: Set) {
        let next = 1 - self.published.load(Acquire);
        // SAFETY: the set that is not published, which nobody reads any more, and one writer.
        unsafe { *self.sets[next as usize].get() = set };
        // ORDER(publish): Release; see `read`.
        self.published.store(next, Release);
    }

    /// The slot that holds `gfn`.
    pub(crate) fn find(&self, reads: &ReadSide, seat: &Seat, gfn: Gfn) -> Option<Slot> {
        let _section = reads.enter(seat);
        // SAFETY: in a section, which outlives the view.
        let view = unsafe { self.read().by_gfn.read() };
        view.floor(gfn.0).map(|(_, slot)| slot).filter(|slot| slot.gfns.contains(gfn))
    }

    pub(crate) fn find_id(&self, reads: &ReadSide, seat: &Seat, id: SlotId) -> Option<Slot> {
        let _section = reads.enter(seat);
        let set = self.read();
        // SAFETY: in a section, which outlives both views.
        let (by_id, by_gfn) = unsafe { (set.by_id.read(), set.by_gfn.read()) };
        by_gfn.get(by_id.get(id.0)?)
    }

    /// Calls `visit` with the frames behind `hvas`, slot by slot, of one set.
    pub(crate) fn over_hvas(
        &self,
        reads: &ReadSide,
        seat: &Seat,
        hvas: Span<Hva>,
        mut visit: impl FnMut(Span<Gfn>),
    ) {
        if hvas.is_empty() {
            return;
        }
        let _section = reads.enter(seat);
        let set = self.read();
        // SAFETY: in a section, which outlives both views.
        let (by_hva, by_gfn) = unsafe { (set.by_hva.read(), set.by_gfn.read()) };
        for (_, gfn) in by_hva.overlapping(hvas.start.0, (hvas.end.0, 0)) {
            if let Some(slot) = by_gfn.get(gfn) {
                visit(slot.gfns_of(hvas));
            }
        }
    }

    pub(crate) fn for_each(&self, reads: &ReadSide, seat: &Seat, mut visit: impl FnMut(Slot)) {
        let _section = reads.enter(seat);
        // SAFETY: in a section, which outlives the view.
        let view = unsafe { self.read().by_gfn.read() };
        view.range(0..).for_each(|(_, slot)| visit(slot));
    }

    pub(crate) fn len(&self) -> usize {
        self.writer.lock().by_gfn.len()
    }
}
