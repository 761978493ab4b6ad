//! One version of the slots: its roots, to be published; the same held still, to be asked; and the next one, in the
//! making.

use super::hint::{Interval, Packed};
use super::pool::NoMemory;
use super::tree::{Edit, Retired, Root, Tree, View};
use super::{Slot, SlotId};
use crate::addr::{Gfn, Hva, Span};
use crate::slots::bitmap::Bitmap;
use alloc::alloc::{Layout, alloc, dealloc};
use alloc::vec::Vec;
use core::ptr::NonNull;

/// One of something for each index: trees, edits of them, roots, views.
#[derive(Clone, Copy)]
pub(super) struct Each<G, H, I, L> {
    pub(super) by_gfn: G,
    pub(super) by_hva: H,
    pub(super) by_id: I,
    /// The dirty logs of those slots that have one.
    pub(super) logs: L,
}

/// The writer's side. In the hva index an interval's value is the slot's first frame, its end a host address.
pub(super) type Trees = Each<Tree<u64, Packed>, Tree<u128, u64, u64>, Tree<u32, u64>, Tree<u32, Log>>;
/// The next version in the making.
pub(super) type Edits<'t> =
    Each<Edit<'t, u64, Packed>, Edit<'t, u128, u64, u64>, Edit<'t, u32, u64>, Edit<'t, u32, Log>>;
type Roots = Each<Root<u64, Packed>, Root<u128, u64, u64>, Root<u32, u64>, Root<u32, Log>>;
type Views<'g> =
    Each<View<'g, u64, Packed>, View<'g, u128, u64, u64>, View<'g, u32, u64>, View<'g, u32, Log>>;
type Nodes = Each<Retired<u64, Packed>, Retired<u128, u64, u64>, Retired<u32, u64>, Retired<u32, Log>>;

/// One version of the slots, to be published. What keeps its nodes is said where it is read.
#[derive(Clone, Copy)]
pub(crate) struct Set {
    pub(super) roots: Roots,
    pub(super) facts: Facts,
}

/// What is known of all slots of a version.
#[derive(Clone, Copy)]
pub(super) struct Facts {
    pub(super) len: usize,
    /// No two slots share a host address. Where this says false they may, or may have once.
    pub(super) disjoint: bool,
    /// Dirty logs that there have been.
    pub(super) logs: u64,
}

/// One version of the slots, held still for reading during `'g`.
#[derive(Clone, Copy)]
pub(crate) struct Version<'g> {
    views: Views<'g>,
    facts: Facts,
}

/// What a new version no longer holds, but perhaps a reader: nodes, and dirty logs that ended.
#[must_use = "reclaimed after a grace period, or lost"]
pub(crate) struct Leftovers {
    pub(super) nodes: Nodes,
    pub(super) logs: Vec<Log>,
}

/// The dirty log of a slot: owned by the map, lent to readers of the versions that hold it.
#[derive(Clone, Copy)]
pub(super) struct Log(NonNull<Bitmap>);

// SAFETY: a bitmap may be used from any thread; who owns it is decided by the map.
unsafe impl Send for Log {}
// SAFETY: as above.
unsafe impl Sync for Log {}

impl Log {
    pub(super) fn new(pages: u64, serial: u64, all: bool) -> Option<Self> {
        let bitmap = Bitmap::new(pages, serial, all)?;
        if injected!(Alloc) {
            return None;
        }
        // Not a box, whose allocation cannot be refused.
        // SAFETY: a bitmap is not of size zero.
        let place = NonNull::new(unsafe { alloc(Layout::new::<Bitmap>()) })?.cast::<Bitmap>();
        // SAFETY: fresh from the allocator, with the layout of what is written.
        unsafe { place.write(bitmap) };
        Some(Self(place))
    }

    /// # Safety
    /// For all of `'g` the caller reads a version that holds this log.
    unsafe fn bitmap<'g>(self) -> &'g Bitmap {
        // SAFETY: made in `new`; freed when no version that is read holds it.
        unsafe { self.0.as_ref() }
    }

    /// # Safety
    /// No version that anybody reads holds it, and it is freed once.
    pub(super) unsafe fn free(self) {
        // SAFETY: made in `new` with this layout; the caller's word.
        unsafe {
            self.0.drop_in_place();
            dealloc(self.0.as_ptr().cast(), Layout::new::<Bitmap>());
        }
    }
}

/// First host address, then id, since slots may share addresses.
pub(super) fn hva_key(hva: Hva, id: SlotId) -> u128 {
    u128::from(hva.0) << 32 | u128::from(id.0)
}

/// A slot's place in the order of the hva index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place(u128);

impl Place {
    /// Before all.
    pub(crate) const FIRST: Self = Self(0);

    /// The one after.
    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Set {
    /// Reads this version.
    ///
    /// # Safety
    /// During `'g` its map lives, and what the map has left over since this version is not reclaimed.
    #[inline(always)]
    pub(crate) unsafe fn read<'g>(self) -> Version<'g> {
        let Each { by_gfn, by_hva, by_id, logs } = self.roots;
        // SAFETY: the caller's word.
        let views = unsafe {
            Each { by_gfn: by_gfn.read(), by_hva: by_hva.read(), by_id: by_id.read(), logs: logs.read() }
        };
        Version { views, facts: self.facts }
    }
}

impl<'g> Version<'g> {
    /// The slot that holds `gfn`.
    #[inline(always)]
    pub(crate) fn find(self, gfn: Gfn) -> Option<Slot> {
        let (start, packed) = self.views.by_gfn.floor(gfn.0)?;
        Some(packed.slot(Gfn(start))).filter(|slot| slot.gfns.contains(gfn))
    }

    pub(crate) fn get(self, id: SlotId) -> Option<Slot> {
        let gfn = self.views.by_id.get(id.0)?;
        Some(self.views.by_gfn.get(gfn)?.slot(Gfn(gfn)))
    }

    pub(crate) fn range(self, gfns: Span<Gfn>) -> impl Iterator<Item = Slot> + use<'g> {
        // The slot below may reach in.
        let below = self.views.by_gfn.floor(gfns.start.0);
        let first = below.map_or(gfns.start.0, |(start, _)| start);
        let slots = self.views.by_gfn.range(first..).map(|(start, packed)| packed.slot(Gfn(start)));
        slots.take_while(move |slot| slot.gfns.start < gfns.end).filter(move |slot| slot.gfns.overlaps(&gfns))
    }

    /// Calls `visit` with the frames behind `hvas`, slot by slot.
    #[inline]
    pub(crate) fn over_hvas(self, hvas: Span<Hva>, mut visit: impl FnMut(Span<Gfn>)) {
        match self.alone_over(hvas) {
            Some(slot) => visit(slot.part(hvas)),
            None => self.search_hvas(hvas, Place::FIRST).for_each(|(_, slot)| visit(slot.part(hvas))),
        }
    }

    /// The slots that have any of `hvas`, each with its place in their order; those from `from` on.
    pub(super) fn search_hvas(
        self,
        hvas: Span<Hva>,
        from: Place,
    ) -> impl Iterator<Item = (Place, Interval)> + use<'g> {
        // Nothing meets an empty range.
        let until = if hvas.is_empty() { 0 } else { hva_key(hvas.end, SlotId(0)) };
        let slots = self.views.by_hva.overlapping(hvas.start.0, from.0..until);
        slots.map(|slot| (Place(slot.0), Interval::of(slot)))
    }

    /// The slot that all of `hvas` lie in, where it is known that no other shares them: mostly. Then it is found as
    /// a frame would be.
    #[inline]
    pub(super) fn alone_over(self, hvas: Span<Hva>) -> Option<Interval> {
        if !self.facts.disjoint || hvas.is_empty() {
            return None;
        }
        let last = self.views.by_hva.floor_interval(hva_key(hvas.start, SlotId(u32::MAX)))?;
        Some(Interval::of(last)).filter(|slot| slot.hvas.covers(&hvas))
    }

    /// The dirty log of slot `id`, if it has one.
    pub(crate) fn log(self, id: SlotId) -> Option<&'g Bitmap> {
        // SAFETY: this version holds it, and is read for all of `'g`.
        self.views.logs.get(id.0).map(|log| unsafe { log.bitmap() })
    }

    /// The slot that begins last below `end`.
    pub(super) fn last_below(self, end: Gfn) -> Option<Slot> {
        let (start, packed) = self.views.by_gfn.floor(end.0.checked_sub(1)?)?;
        Some(packed.slot(Gfn(start)))
    }

    /// Every dirty log.
    pub(super) fn logs(self) -> impl Iterator<Item = Log> + use<'g> {
        self.views.logs.range(0..).map(|(_, log)| log)
    }

    /// Whether any slot has a dirty log.
    #[inline(always)]
    pub(crate) fn logs_any(self) -> bool {
        !self.views.logs.is_empty()
    }

    pub(crate) fn len(self) -> usize {
        self.facts.len
    }

    /// Whether host addresses of a slot that is not in this version are free; told truly where the version
    /// is disjoint.
    pub(super) fn is_free(self, hvas: Span<Hva>) -> bool {
        // Only the slot that begins last below the end can reach in, or one that it would share addresses with.
        let last = self.views.by_hva.floor_interval(hva_key(hvas.end, SlotId(0)) - 1);
        last.is_none_or(|(_, _, end)| end <= hvas.start.0)
    }
}

impl Edits<'_> {
    /// Makes the next of the operations below succeed in every index.
    pub(super) fn reserve(&mut self, logs: bool) -> Result<(), NoMemory> {
        // A move is two edits of the gfn index.
        self.by_gfn.reserve(2)?;
        self.by_hva.reserve(1)?;
        self.by_id.reserve(1)?;
        if logs { self.logs.reserve(1) } else { Ok(()) }
    }

    pub(super) fn insert(&mut self, slot: &Slot) -> Result<(), NoMemory> {
        let gfn = slot.gfns.start.0;
        self.by_gfn.insert(gfn, Packed::new(slot), ())?;
        self.by_hva.insert(hva_key(slot.hva, slot.id), gfn, slot.hvas().end.0)?;
        self.by_id.insert(slot.id.0, gfn, ())?;
        Ok(())
    }

    /// Removes slot `id`, if there is one.
    pub(super) fn remove(&mut self, id: SlotId) -> Result<Option<Slot>, NoMemory> {
        let Some(gfn) = self.by_id.remove(id.0)? else { return Ok(None) };
        let Some(slot) = self.by_gfn.remove(gfn)?.map(|packed| packed.slot(Gfn(gfn))) else {
            return Ok(None);
        };
        self.by_hva.remove(hva_key(slot.hva, id))?;
        Ok(Some(slot))
    }

    /// Makes `old` into `new`, which has its id, size and host address.
    pub(super) fn replace(&mut self, old: &Slot, new: &Slot) -> Result<(), NoMemory> {
        let gfn = new.gfns.start.0;
        if old.gfns != new.gfns {
            self.by_gfn.remove(old.gfns.start.0)?;
            self.by_hva.insert(hva_key(new.hva, new.id), gfn, new.hvas().end.0)?;
            self.by_id.insert(new.id.0, gfn, ())?;
        }
        self.by_gfn.insert(gfn, Packed::new(new), ())?;
        Ok(())
    }

    pub(super) fn start_log(&mut self, id: SlotId, log: Log) -> Result<(), NoMemory> {
        self.logs.insert(id.0, log, ()).map(drop)
    }

    pub(super) fn end_log(&mut self, id: SlotId) -> Result<Option<Log>, NoMemory> {
        self.logs.remove(id.0)
    }

    /// The version in the making, as far as it has come.
    pub(super) fn version(&self) -> Version<'_> {
        let Each { by_gfn, by_hva, by_id, logs } = self;
        let views =
            Each { by_gfn: by_gfn.view(), by_hva: by_hva.view(), by_id: by_id.view(), logs: logs.view() };
        Version { views, facts: Facts { len: 0, disjoint: false, logs: 0 } }
    }

    /// Whether there is a slot of this id.
    pub(super) fn has(&self, id: SlotId) -> bool {
        self.by_id.view().get(id.0).is_some()
    }

    /// Makes it the map's current version.
    pub(super) fn publish(self, facts: Facts, logs: Vec<Log>) -> (Set, Leftovers) {
        let (by_gfn, old_by_gfn) = self.by_gfn.publish();
        let (by_hva, old_by_hva) = self.by_hva.publish();
        let (by_id, old_by_id) = self.by_id.publish();
        let (log_root, old_logs) = self.logs.publish();
        let nodes = Each { by_gfn: old_by_gfn, by_hva: old_by_hva, by_id: old_by_id, logs: old_logs };
        (Set { roots: Each { by_gfn, by_hva, by_id, logs: log_root }, facts }, Leftovers { nodes, logs })
    }
}
