//! One version of the slots: its roots, to be published; the same held still, to be asked; and the next one, in the
//! making.
//!
//! A version is five trees: slots by frame, by host address and by id, the logs of those that have one, and both backings of
//! those that have private memory. By frame and by host address such a slot is there in [parts](crate::private).

use crate::addr::{Gfn, Hva, PAGE_SHIFT, PAGE_SIZE, Span};
use crate::log::Kept;
use crate::pool::NoMemory;
use crate::private::Backings;
use crate::slot::{Packed, Slot, SlotId};
use crate::tree::{Edit, Retired, Root, Tree, View};
use alloc::vec::Vec;
use core::fmt;

/// One of something for each index: trees, edits of them, roots, views.
#[derive(Clone, Copy)]
pub(crate) struct Each<G, H, I, L, B> {
    pub(crate) by_gfn: G,
    pub(crate) by_hva: H,
    pub(crate) by_id: I,
    /// The dirty logs of those slots that have one.
    pub(crate) logs: L,
    pub(crate) backings: B,
}

/// The writer's side. In the hva index an interval's value is the slot's first frame, its end a host address.
pub(crate) type Trees<L> =
    Each<Tree<u64, Packed>, Tree<u128, u64, u64>, Tree<u32, u64>, Tree<u32, Kept<L>>, Tree<u32, Backings>>;
/// The next version in the making.
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

/// One version of the slots as an embedder publishes it: a few words. It keeps no node: see [`read`](Self::read).
pub struct VersionRoot<L = ()> {
    pub(crate) roots: Roots<L>,
    pub(crate) facts: Facts,
}

/// What is known of all slots of a version.
#[derive(Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) len: usize,
    /// No two slots share a host address. Where this says false they may, or may have once.
    pub(crate) disjoint: bool,
    /// Dirty logs that there have been.
    pub(crate) logs: u64,
}

/// One version of the slots, held still for reading during `'g`. See [`Snapshot`](crate::Snapshot) for one that is owned.
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

/// What a new version no longer holds, but perhaps a reader of an older one: nodes, and logs that ended. A debt: see
/// [`SlotMap::reclaim`](crate::SlotMap::reclaim).
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

/// First host address, then id, since slots may share addresses.
pub(crate) fn hva_key(hva: Hva, id: SlotId) -> u128 {
    u128::from(hva.0) << 32 | u128::from(id.0)
}

/// A slot's place in the order of host addresses, in which a search can go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place(u128);

impl Place {
    /// Before all.
    pub const FIRST: Self = Self(0);

    /// The one after.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A slot as the order of host addresses has it.
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

    /// Its frames behind `hvas`, some of which lie in it. A frame counts where one of its bytes does.
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
    /// During `'g` its map lives, and what the map has left over since this version is not reclaimed: for instance because `'g`
    /// is a section of the embedder's read side in which this version was found published, and a grace period lies between
    /// its replacement and [`SlotMap::reclaim`](crate::SlotMap::reclaim).
    #[inline(always)]
    pub unsafe fn read<'g>(self) -> Version<'g, L> {
        let Each { by_gfn, by_hva, by_id, logs, backings } = self.roots;
        // SAFETY: the caller's word.
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
    /// The slot that holds `gfn`; of one with private memory the part around `gfn` that is all private, or all shared.
    #[inline(always)]
    pub fn find(self, gfn: Gfn) -> Option<Slot> {
        let (start, packed) = self.views.by_gfn.floor(gfn.0)?;
        Some(packed.slot(Gfn(start))).filter(|slot| slot.gfns.contains(gfn))
    }

    /// The slot named `id`.
    pub fn get(self, id: SlotId) -> Option<Slot> {
        let gfn = self.views.by_id.get(id.0)?;
        let part = self.views.by_gfn.get(gfn)?.slot(Gfn(gfn));
        Some(self.backings(id).map_or(part, |backings| backings.whole(part)))
    }

    /// Where the private memory of slot `id` is, if it has both kinds.
    pub fn private_memory(self, id: SlotId) -> Option<Hva> {
        self.backings(id).map(|backings| backings.private)
    }

    pub(crate) fn backings(self, id: SlotId) -> Option<Backings> {
        self.views.backings.get(id.0)
    }

    /// The slots that have any of `gfns`, in order; those with private memory in parts, as [`find`](Self::find) has them.
    pub fn range(self, gfns: Span<Gfn>) -> impl Iterator<Item = Slot> + use<'g, L> {
        // The slot below may reach in.
        let below = self.views.by_gfn.floor(gfns.start.0);
        let first = below.map_or(gfns.start.0, |(start, _)| start);
        let slots = self.views.by_gfn.range(first..).map(|(start, packed)| packed.slot(Gfn(start)));
        slots.take_while(move |slot| slot.gfns.start < gfns.end).filter(move |slot| slot.gfns.overlaps(&gfns))
    }

    /// Calls `visit` with the frames behind `hvas`, slot by slot, in order of host addresses: once for each slot that shares them.
    #[inline]
    pub fn over_hvas(self, hvas: Span<Hva>, mut visit: impl FnMut(Span<Gfn>)) {
        match self.alone_over(hvas) {
            Some(slot) => visit(slot.part(hvas)),
            None => self.search_hvas(hvas, Place::FIRST).for_each(|(_, slot)| visit(slot.part(hvas))),
        }
    }

    /// The slots that have any of `hvas`, each with its place in their order; those from `from` on.
    pub fn search_hvas(
        self,
        hvas: Span<Hva>,
        from: Place,
    ) -> impl Iterator<Item = (Place, Interval)> + use<'g, L> {
        // Nothing meets an empty range.
        let until = if hvas.is_empty() { 0 } else { hva_key(hvas.end, SlotId(0)) };
        let slots = self.views.by_hva.overlapping(hvas.start.0, from.0..until);
        slots.map(|slot| (Place(slot.0), Interval::of(slot)))
    }

    /// The slot that all of `hvas` lie in, where it is known that no other shares them: mostly. Then it is found as
    /// a frame would be.
    #[inline(always)]
    pub fn alone_over(self, hvas: Span<Hva>) -> Option<Interval> {
        if !self.facts.disjoint || hvas.is_empty() {
            return None;
        }
        let last = self.views.by_hva.floor_interval(hva_key(hvas.start, SlotId(u32::MAX)))?;
        Some(Interval::of(last)).filter(|slot| slot.hvas.covers(&hvas))
    }

    /// The log of slot `id`, if it has one.
    #[inline]
    pub fn log(self, id: SlotId) -> Option<&'g L> {
        // SAFETY: this version holds it, and is read for all of `'g`.
        self.views.logs.get(id.0).map(|log| unsafe { log.get() })
    }

    /// The slot that begins last below `end`.
    pub(crate) fn last_below(self, end: Gfn) -> Option<Slot> {
        let (start, packed) = self.views.by_gfn.floor(end.0.checked_sub(1)?)?;
        Some(packed.slot(Gfn(start)))
    }

    /// Whether any slot has a log.
    #[inline(always)]
    pub fn logs_any(self) -> bool {
        !self.views.logs.is_empty()
    }

    /// How many slots there are.
    pub fn len(self) -> usize {
        self.facts.len
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Whether host addresses of a slot that is not in this version are free; told truly where the version
    /// is disjoint.
    pub(crate) fn is_free(self, hvas: Span<Hva>) -> bool {
        // Only the slot that begins last below the end can reach in, or one that it would share addresses with.
        let last = self.views.by_hva.floor_interval(hva_key(hvas.end, SlotId(0)) - 1);
        last.is_none_or(|(_, _, end)| end <= hvas.start.0)
    }
}

impl<L> Edits<'_, L> {
    /// Makes the next of the operations below succeed in every index.
    pub(crate) fn reserve(&mut self, logs: bool) -> Result<(), NoMemory> {
        // A move is two edits of the gfn index.
        self.by_gfn.reserve(2)?;
        self.by_hva.reserve(1)?;
        self.by_id.reserve(1)?;
        if logs { self.logs.reserve(1) } else { Ok(()) }
    }

    /// The same for [`cut`](Self::cut) into two pieces at most.
    pub(crate) fn reserve_cut(&mut self, logs: bool) -> Result<(), NoMemory> {
        self.by_gfn.reserve(3)?;
        self.by_hva.reserve(3)?;
        self.by_id.reserve(3)?;
        if logs { self.logs.reserve(3) } else { Ok(()) }
    }

    /// The first part of slot `id` begins at `gfn`.
    pub(crate) fn name(&mut self, id: SlotId, gfn: Gfn) -> Result<(), NoMemory> {
        self.by_id.insert(id.0, gfn.0, ()).map(drop)
    }

    /// Makes `old` into its `pieces`.
    pub(crate) fn cut(&mut self, old: &Slot, pieces: &[Slot]) -> Result<(), NoMemory> {
        self.remove(old.id)?;
        pieces.iter().try_for_each(|piece| self.insert(piece))
    }

    pub(crate) fn insert(&mut self, slot: &Slot) -> Result<(), NoMemory> {
        self.insert_part(slot)?;
        self.by_id.insert(slot.id.0, slot.gfns.start.0, ())?;
        Ok(())
    }

    /// Removes slot `id`, if there is one; of a slot in parts the first.
    pub(crate) fn remove(&mut self, id: SlotId) -> Result<Option<Slot>, NoMemory> {
        let Some(gfn) = self.by_id.remove(id.0)? else { return Ok(None) };
        self.remove_part(id, Gfn(gfn))
    }

    /// Removes what begins at `gfn` from the orders of frames and of host addresses.
    pub(crate) fn remove_part(&mut self, id: SlotId, gfn: Gfn) -> Result<Option<Slot>, NoMemory> {
        let Some(slot) = self.by_gfn.remove(gfn.0)?.map(|packed| packed.slot(gfn)) else {
            return Ok(None);
        };
        self.by_hva.remove(hva_key(slot.hva, id))?;
        Ok(Some(slot))
    }

    /// The other way round.
    pub(crate) fn insert_part(&mut self, part: &Slot) -> Result<(), NoMemory> {
        let gfn = part.gfns.start.0;
        self.by_gfn.insert(gfn, Packed::new(part), ())?;
        self.by_hva.insert(hva_key(part.hva, part.id), gfn, part.hvas().end.0)?;
        Ok(())
    }

    /// Makes `old` into `new`, which has its id, size and host address.
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

    /// The version in the making, as far as it has come.
    pub(crate) fn version(&self) -> Version<'_, L> {
        let Each { by_gfn, by_hva, by_id, logs, backings } = self;
        let (by_gfn, by_hva, by_id) = (by_gfn.view(), by_hva.view(), by_id.view());
        let views = Each { by_gfn, by_hva, by_id, logs: logs.view(), backings: backings.view() };
        Version { views, facts: Facts { len: 0, disjoint: false, logs: 0 } }
    }

    /// Bytes of the nodes that were copied so far.
    pub(crate) fn copied_bytes(&self) -> usize {
        let Each { by_gfn, by_hva, by_id, logs, backings } = self;
        let made = by_gfn.made_bytes() + by_hva.made_bytes() + by_id.made_bytes();
        made + logs.made_bytes() + backings.made_bytes()
    }

    /// Whether there is a slot of this id.
    pub(crate) fn has(&self, id: SlotId) -> bool {
        self.by_id.view().get(id.0).is_some()
    }

    /// Makes it the map's current version.
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
