//! One version of the slots: its roots, for publication; the same protected, for look-ups; and the next version
//! under construction.
//!
//! A version has five trees: slots by frame, by host address and by id; logs; and the memories of slots with
//! private memory. The first two contain such a slot as [parts](crate::private).

use crate::addr::{Gfn, Hva, PAGE_SHIFT, PAGE_SIZE, Span};
use crate::log::Kept;
use crate::pool::NoMemory;
use crate::slot::{Backings, Packed, Slot, SlotId};
use crate::tree::{Edit, Retired, Root, Tree, View};
use alloc::vec::Vec;
use core::fmt;

/// One value for each index: trees, edits, roots, views.
#[derive(Clone, Copy)]
pub(crate) struct Each<G, H, I, L, B> {
    pub(crate) by_gfn: G,
    pub(crate) by_hva: H,
    pub(crate) by_id: I,
    /// The dirty logs of slots that have one.
    pub(crate) logs: L,
    pub(crate) backings: B,
}

/// The writer's side. In the hva index the value of an interval is the slot's first frame, its end a host
/// address.
pub(crate) type Trees<L> =
    Each<Tree<u64, Packed>, Tree<u128, u64, u64>, Tree<u32, u64>, Tree<u32, Kept<L>>, Tree<u32, Backings>>;
/// The next version under construction.
pub(crate) type Edits<'t, L> = Each<
    Edit<'t, u64, Packed>,
    Edit<'t, u128, u64, u64>,
    Edit<'t, u32, u64>,
    Edit<'t, u32, Kept<L>>,
    Edit<'t, u32, Backings>,
>;
type Roots<L> =
    Each<Root<u64, Packed>, Root<u128, u64, u64>, Root<u32, u64>, Root<u32, Kept<L>>, Root<u32, Backings>>;
type Views<'g, L> = Each<
    View<'g, u64, Packed>,
    View<'g, u128, u64, u64>,
    View<'g, u32, u64>,
    View<'g, u32, Kept<L>>,
    View<'g, u32, Backings>,
>;
type Nodes<L> = Each<
    Retired<u64, Packed>,
    Retired<u128, u64, u64>,
    Retired<u32, u64>,
    Retired<u32, Kept<L>>,
    Retired<u32, Backings>,
>;

/// One version of the slots for publication: a few words. It does not keep nodes alive: see
/// [`read`](Self::read).
pub struct VersionRoot<L = ()> {
    pub(crate) roots: Roots<L>,
    pub(crate) facts: Facts,
}

/// Properties of all slots of a version.
#[derive(Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) len: usize,
    /// True if no two slots share a host address. False if they may, or may once have.
    pub(crate) disjoint: bool,
    /// Number of dirty logs ever created.
    pub(crate) logs: u64,
}

/// One version of the slots, protected during `'g`. A [`Snapshot`](crate::Snapshot) is an owned version.
pub struct Version<'g, L = ()> {
    views: Views<'g, L>,
    facts: Facts,
}

impl<L> Clone for VersionRoot<L> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for VersionRoot<L> {}

impl<L> Clone for Version<'_, L> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Version<'_, L> {}

impl<L> fmt::Debug for VersionRoot<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VersionRoot").field("len", &self.facts.len).finish_non_exhaustive()
    }
}

impl<L> fmt::Debug for Version<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.range(Span::new(Gfn(0), Gfn(u64::MAX)))).finish()
    }
}

/// Nodes and ended logs that a new version no longer contains, but that a reader of an older version may use.
/// Pass it to [`SlotMap::reclaim`](crate::SlotMap::reclaim).
#[must_use = "its memory is lost unless `SlotMap::reclaim` takes it after a grace period"]
pub struct Leftovers<L = ()> {
    pub(crate) nodes: Nodes<L>,
    pub(crate) logs: Vec<Kept<L>>,
}

impl<L> fmt::Debug for Leftovers<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leftovers").field("logs", &self.logs.len()).finish_non_exhaustive()
    }
}

/// Host address first, then id, since slots may share addresses.
pub(crate) fn hva_key(hva: Hva, id: SlotId) -> u128 {
    u128::from(hva.0) << 32 | u128::from(id.0)
}

/// A slot's position in the order of host addresses, from which a search can continue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place(u128);

impl Place {
    /// Before all slots.
    pub const FIRST: Self = Self(0);

    /// Returns the next position.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A slot in the order of host addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    /// Its host addresses.
    pub hvas: Span<Hva>,
    /// Its first frame.
    pub gfn: Gfn,
}

impl Interval {
    #[inline]
    fn of((key, gfn, end): (u128, u64, u64)) -> Self {
        Self { hvas: Span::new(Hva((key >> 32) as u64), Hva(end)), gfn: Gfn(gfn) }
    }

    /// Returns its frames that map to `hvas`, which overlaps it. A frame counts if one of its bytes does.
    #[inline(always)]
    pub fn part(&self, hvas: Span<Hva>) -> Span<Gfn> {
        let frame = |bytes: u64| self.gfn + (bytes >> PAGE_SHIFT);
        let (from, to) = (hvas.start.max(self.hvas.start).0, hvas.end.min(self.hvas.end).0);
        let start = self.hvas.start.0;
        Span::new(frame(from - start), frame(to - start + (PAGE_SIZE - 1)))
    }
}

impl<L> VersionRoot<L> {
    /// Reads this version.
    ///
    /// # Safety
    /// During `'g` the map lives, and what it has left over since this version is not reclaimed. For example,
    /// `'g` is a section of the embedder's read side in which this version was the published one. A grace
    /// period then separates its replacement from [`SlotMap::reclaim`](crate::SlotMap::reclaim).
    #[inline(always)]
    pub unsafe fn read<'g>(self) -> Version<'g, L> {
        let Each { by_gfn, by_hva, by_id, logs, backings } = self.roots;
        // SAFETY: the caller keeps the condition.
        let views = unsafe {
            Each {
                by_gfn: by_gfn.read(),
                by_hva: by_hva.read(),
                by_id: by_id.read(),
                logs: logs.read(),
                backings: backings.read(),
            }
        };
        Version { views, facts: self.facts }
    }
}

impl<'g, L> Version<'g, L> {
    /// Returns the slot that contains `gfn`; for a slot with private memory, the part around `gfn` that is all
    /// private or all shared.
    #[inline(always)]
    pub fn find(self, gfn: Gfn) -> Option<Slot> {
        let (start, packed) = self.views.by_gfn.floor(gfn.0)?;
        Some(packed.slot(Gfn(start))).filter(|slot| slot.gfns.contains(gfn))
    }

    /// Returns the slot with this id.
    pub fn get(self, id: SlotId) -> Option<Slot> {
        let gfn = self.views.by_id.get(id.0)?;
        let part = self.views.by_gfn.get(gfn)?.slot(Gfn(gfn));
        Some(self.backings(id).map_or(part, |backings| backings.whole(part)))
    }

    /// Returns the address of slot `id`'s private memory, if it has both kinds.
    pub fn private_memory(self, id: SlotId) -> Option<Hva> {
        self.backings(id).map(|backings| backings.private)
    }

    pub(crate) fn backings(self, id: SlotId) -> Option<Backings> {
        self.views.backings.get(id.0)
    }

    /// Returns the slots that overlap `gfns`, in order; slots with private memory in parts, as in
    /// [`find`](Self::find).
    pub fn range(self, gfns: Span<Gfn>) -> impl Iterator<Item = Slot> + use<'g, L> {
        // The slot before may overlap the start.
        let below = self.views.by_gfn.floor(gfns.start.0);
        let first = below.map_or(gfns.start.0, |(start, _)| start);
        let slots = self.views.by_gfn.range(first..).map(|(start, packed)| packed.slot(Gfn(start)));
        slots.take_while(move |slot| slot.gfns.start < gfns.end).filter(move |slot| slot.gfns.overlaps(&gfns))
    }

    /// Calls `visit` with the frames that map to `hvas`, in order of host addresses: once for each slot.
    #[inline]
    pub fn over_hvas(self, hvas: Span<Hva>, mut visit: impl FnMut(Span<Gfn>)) {
        match self.alone_over(hvas) {
            Some(slot) => visit(slot.part(hvas)),
            None => self.search_hvas(hvas, Place::FIRST).for_each(|(_, slot)| visit(slot.part(hvas))),
        }
    }

    /// Returns the slots that overlap `hvas` from position `from` on, each with its position.
    pub fn search_hvas(
        self,
        hvas: Span<Hva>,
        from: Place,
    ) -> impl Iterator<Item = (Place, Interval)> + use<'g, L> {
        // No slot overlaps an empty range.
        let until = if hvas.is_empty() { 0 } else { hva_key(hvas.end, SlotId(0)) };
        let slots = self.views.by_hva.overlapping(hvas.start.0, from.0..until);
        slots.map(|slot| (Place(slot.0), Interval::of(slot)))
    }

    /// Returns the slot that contains all of `hvas`, if no other slot is known to share them, as is usual. This
    /// look-up costs as much as one by frame.
    #[inline(always)]
    pub fn alone_over(self, hvas: Span<Hva>) -> Option<Interval> {
        if !self.facts.disjoint || hvas.is_empty() {
            return None;
        }
        let last = self.views.by_hva.floor_interval(hva_key(hvas.start, SlotId(u32::MAX)))?;
        Some(Interval::of(last)).filter(|slot| slot.hvas.covers(&hvas))
    }

    /// Returns the log of slot `id`, if it has one.
    #[inline]
    pub fn log(self, id: SlotId) -> Option<&'g L> {
        // SAFETY: this version contains it, and is protected during `'g`.
        self.views.logs.get(id.0).map(|log| unsafe { log.get() })
    }

    /// Returns the last slot that begins below `end`.
    pub(crate) fn last_below(self, end: Gfn) -> Option<Slot> {
        let (start, packed) = self.views.by_gfn.floor(end.0.checked_sub(1)?)?;
        Some(packed.slot(Gfn(start)))
    }

    /// Whether any slot has a log.
    #[inline(always)]
    pub fn logs_any(self) -> bool {
        !self.views.logs.is_empty()
    }

    /// Returns the number of slots.
    pub fn len(self) -> usize {
        self.facts.len
    }

    /// Whether there are no slots.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Whether no slot of this version uses these host addresses. Exact if the version is disjoint.
    pub(crate) fn is_free(self, hvas: Span<Hva>) -> bool {
        // Only the last slot that begins below the end can overlap, or one that shares addresses with it.
        let last = self.views.by_hva.floor_interval(hva_key(hvas.end, SlotId(0)) - 1);
        last.is_none_or(|(_, _, end)| end <= hvas.start.0)
    }
}

impl<L> Edits<'_, L> {
    /// Makes the next operation succeed in every index.
    pub(crate) fn reserve(&mut self, logs: bool) -> Result<(), NoMemory> {
        // A move edits the gfn index twice.
        self.by_gfn.reserve(2)?;
        self.by_hva.reserve(1)?;
        self.by_id.reserve(1)?;
        if logs { self.logs.reserve(1) } else { Ok(()) }
    }

    /// Makes a [`cut`](Self::cut) into up to two pieces succeed.
    pub(crate) fn reserve_cut(&mut self, logs: bool) -> Result<(), NoMemory> {
        self.by_gfn.reserve(3)?;
        self.by_hva.reserve(3)?;
        self.by_id.reserve(3)?;
        if logs { self.logs.reserve(3) } else { Ok(()) }
    }

    /// Records that the first part of slot `id` begins at `gfn`.
    pub(crate) fn name(&mut self, id: SlotId, gfn: Gfn) -> Result<(), NoMemory> {
        self.by_id.insert(id.0, gfn.0, ()).map(drop)
    }

    /// Replaces `old` by `pieces`.
    pub(crate) fn cut(&mut self, old: &Slot, pieces: &[Slot]) -> Result<(), NoMemory> {
        self.remove(old.id)?;
        pieces.iter().try_for_each(|piece| self.insert(piece))
    }

    pub(crate) fn insert(&mut self, slot: &Slot) -> Result<(), NoMemory> {
        self.insert_part(slot)?;
        self.by_id.insert(slot.id.0, slot.gfns.start.0, ())?;
        Ok(())
    }

    /// Removes slot `id`, if it exists; only the first part of a slot in parts.
    pub(crate) fn remove(&mut self, id: SlotId) -> Result<Option<Slot>, NoMemory> {
        let Some(gfn) = self.by_id.remove(id.0)? else { return Ok(None) };
        self.remove_part(id, Gfn(gfn))
    }

    /// Removes the part that begins at `gfn` from the gfn and hva indexes.
    pub(crate) fn remove_part(&mut self, id: SlotId, gfn: Gfn) -> Result<Option<Slot>, NoMemory> {
        let Some(slot) = self.by_gfn.remove(gfn.0)?.map(|packed| packed.slot(gfn)) else {
            return Ok(None);
        };
        self.by_hva.remove(hva_key(slot.hva, id))?;
        Ok(Some(slot))
    }

    /// Adds a part to the gfn and hva indexes.
    pub(crate) fn insert_part(&mut self, part: &Slot) -> Result<(), NoMemory> {
        let gfn = part.gfns.start.0;
        self.by_gfn.insert(gfn, Packed::new(part), ())?;
        self.by_hva.insert(hva_key(part.hva, part.id), gfn, part.hvas().end.0)?;
        Ok(())
    }

    /// Replaces `old` by `new`, which has the same id, size and host address.
    pub(crate) fn replace(&mut self, old: &Slot, new: &Slot) -> Result<(), NoMemory> {
        let gfn = new.gfns.start.0;
        if old.gfns != new.gfns {
            self.by_gfn.remove(old.gfns.start.0)?;
            self.by_hva.insert(hva_key(new.hva, new.id), gfn, new.hvas().end.0)?;
            self.by_id.insert(new.id.0, gfn, ())?;
        }
        self.by_gfn.insert(gfn, Packed::new(new), ())?;
        Ok(())
    }

    pub(crate) fn start_log(&mut self, id: SlotId, log: Kept<L>) -> Result<(), NoMemory> {
        self.logs.insert(id.0, log, ()).map(drop)
    }

    pub(crate) fn end_log(&mut self, id: SlotId) -> Result<Option<Kept<L>>, NoMemory> {
        self.logs.remove(id.0)
    }

    /// Returns the version under construction.
    pub(crate) fn version(&self) -> Version<'_, L> {
        let Each { by_gfn, by_hva, by_id, logs, backings } = self;
        let (by_gfn, by_hva, by_id) = (by_gfn.view(), by_hva.view(), by_id.view());
        let views = Each { by_gfn, by_hva, by_id, logs: logs.view(), backings: backings.view() };
        Version { views, facts: Facts { len: 0, disjoint: false, logs: 0 } }
    }

    /// Whether a slot with this id exists.
    pub(crate) fn has(&self, id: SlotId) -> bool {
        self.by_id.view().get(id.0).is_some()
    }

    /// Makes this version the map's current one.
    pub(crate) fn publish(self, facts: Facts, logs: Vec<Kept<L>>) -> (VersionRoot<L>, Leftovers<L>) {
        let (by_gfn, old_by_gfn) = self.by_gfn.publish();
        let (by_hva, old_by_hva) = self.by_hva.publish();
        let (by_id, old_by_id) = self.by_id.publish();
        let (log_root, old_logs) = self.logs.publish();
        let (backings, old_backings) = self.backings.publish();
        let nodes = Each {
            by_gfn: old_by_gfn,
            by_hva: old_by_hva,
            by_id: old_by_id,
            logs: old_logs,
            backings: old_backings,
        };
        let roots = Each { by_gfn, by_hva, by_id, logs: log_root, backings };
        (VersionRoot { roots, facts }, Leftovers { nodes, logs })
    }
}
