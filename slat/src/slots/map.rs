//! `SlotMap`: the slots of one address space, found by guest frame, by host address and by id.
//!
//! Its versions are what a VM publishes ([`super::publish`]). By itself it is an ordinary map with one owner:
//!
//! ```
//! use slat::slots::{Limits, SlotMap};
//! use slat::{Gfn, Hva, Slot, SlotId, Span};
//!
//! let mut slots = SlotMap::new(Limits::default());
//! slots.commit(|tx| {
//!     tx.create(Slot::new(SlotId(7), Gfn(0x100), 16, Hva(0x7000_0000)))?;
//!     tx.create(Slot::new(SlotId(8), Gfn(0x900), 16, Hva(0x7000_8000))) // shares eight host pages with 7
//! })?;
//! assert_eq!(slots.find(Gfn(0x10f)).unwrap().id, SlotId(7));
//!
//! let mut behind = Vec::new();
//! slots.over_hvas(Span::new(Hva(0x7000_9000), Hva(0x7000_9001)), |gfns| behind.push(gfns.start));
//! assert_eq!(behind, [Gfn(0x109), Gfn(0x901)]);
//! # Ok::<(), slat::SlotError>(())
//! ```

use super::rules::{Limits, SlotError};
use super::transaction::{Effects, Transaction};
use super::tree::{Edit, Retired, Root, Tree, View};
use super::{Slot, SlotId, pool};
use crate::addr::{Gfn, Hva, PAGE_SHIFT, PAGE_SIZE, Span};
use crate::dirty::bitmap::Bitmap;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::mem;
use core::ptr::NonNull;

/// What the gfn index keeps of a slot beside its key, the first frame: two words, since look-ups pay for size.
///
/// ```text
/// place   host address (page-aligned)        | low 12 bits of the number of pages
/// name    id (32 bits) | the rest of it (30 bits) | log dirty | read-only
/// ```
#[derive(Clone, Copy)]
pub(crate) struct Packed {
    place: u64,
    name: u64,
}

const LOW: u64 = PAGE_SIZE - 1;
const LOG_DIRTY: u64 = 2;
const READONLY: u64 = 1;

impl Packed {
    pub(crate) fn new(slot: &Slot) -> Self {
        let pages = slot.gfns.len();
        let flags = u64::from(slot.log_dirty) * LOG_DIRTY | u64::from(slot.readonly) * READONLY;
        Self {
            place: slot.hva.0 | pages & LOW,
            name: u64::from(slot.id.0) << 32 | pages >> PAGE_SHIFT << 2 | flags,
        }
    }

    #[inline(always)]
    pub(crate) fn slot(self, gfn: Gfn) -> Slot {
        let pages = (self.name & 0xffff_fffc) << (PAGE_SHIFT - 2) | self.place & LOW;
        Slot {
            id: SlotId((self.name >> 32) as u32),
            gfns: Span::new(gfn, gfn + pages),
            hva: Hva(self.place & !LOW),
            readonly: self.name & READONLY != 0,
            log_dirty: self.name & LOG_DIRTY != 0,
        }
    }

    /// Both words, for a copy that is kept beside a table.
    pub(crate) fn words(self) -> [u64; 2] {
        [self.place, self.name]
    }

    #[inline(always)]
    pub(crate) fn from_words([place, name]: [u64; 2]) -> Self {
        Self { place, name }
    }
}

/// First host address, then id, since slots may share addresses.
pub(super) fn hva_key(hva: Hva, id: SlotId) -> u128 {
    u128::from(hva.0) << 32 | u128::from(id.0)
}

/// The dirty log of a slot: owned by the map, lent to readers of the versions that hold it.
#[derive(Clone, Copy)]
pub(super) struct Log(NonNull<Bitmap>);

// SAFETY: a bitmap may be used from any thread; who owns it is decided by the map.
unsafe impl Send for Log {}
// SAFETY: as above.
unsafe impl Sync for Log {}

impl Log {
    pub(super) fn new(pages: u64) -> Option<Self> {
        Bitmap::new(pages).map(|bitmap| Self(NonNull::from(Box::leak(Box::new(bitmap)))))
    }

    /// # Safety
    /// For all of `'g` the caller reads a version that holds this log.
    unsafe fn bitmap<'g>(self) -> &'g Bitmap {
        // SAFETY: leaked in `new`; freed when no version that is read holds it.
        unsafe { self.0.as_ref() }
    }

    /// # Safety
    /// No version that anybody reads holds it, and it is freed once.
    pub(super) unsafe fn free(self) {
        // SAFETY: leaked in `new`; the caller's word.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

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
type Trees = Each<Tree<u64, Packed>, Tree<u128, u64, u64>, Tree<u32, u64>, Tree<u32, Log>>;
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
    roots: Roots,
    len: usize,
}

/// One version of the slots, held still for reading during `'g`.
#[derive(Clone, Copy)]
pub(crate) struct Version<'g> {
    views: Views<'g>,
    len: usize,
}

/// What a new version no longer holds, but perhaps a reader: nodes, and dirty logs that ended.
#[must_use = "reclaimed after a grace period, or lost"]
pub(crate) struct Leftovers {
    nodes: Nodes,
    logs: Vec<Log>,
}

/// See the module's header.
pub struct SlotMap {
    trees: Trees,
    limits: Limits,
    /// Memory for the list of each transaction.
    spare: Vec<Span<Gfn>>,
}

impl fmt::Debug for SlotMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotMap")
            .field("len", &self.len())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Default for SlotMap {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl SlotMap {
    /// No slots. Costs no memory, whatever the limits.
    pub fn new(limits: Limits) -> Self {
        let trees = Each { by_gfn: Tree::new(), by_hva: Tree::new(), by_id: Tree::new(), logs: Tree::new() };
        Self { trees, limits, spare: Vec::new() }
    }

    /// Runs `operations` and keeps what they made. An error, theirs or ours, changes nothing.
    pub fn commit<R>(
        &mut self,
        operations: impl FnOnce(&mut Transaction<'_>) -> Result<R, SlotError>,
    ) -> Result<R, SlotError> {
        let mut tx = self.begin();
        let result = operations(&mut tx)?;
        let (_, leftovers, effects) = tx.finish();
        // SAFETY: from this map; with `&mut self` there is no reader.
        unsafe { self.reclaim(leftovers) };
        self.done(effects);
        Ok(result)
    }

    /// The slot that holds `gfn`.
    #[inline]
    pub fn find(&self, gfn: Gfn) -> Option<Slot> {
        self.version().find(gfn)
    }

    /// The slot named `id`.
    pub fn get(&self, id: SlotId) -> Option<Slot> {
        self.version().get(id)
    }

    /// Calls `visit` with the frames behind `hvas`, slot by slot.
    pub fn over_hvas(&self, hvas: Span<Hva>, visit: impl FnMut(Span<Gfn>)) {
        self.version().over_hvas(hvas, visit);
    }

    /// The slots that have any of `gfns`, in order.
    pub fn range(&self, gfns: Span<Gfn>) -> impl Iterator<Item = Slot> {
        self.version().range(gfns)
    }

    /// How many slots there are.
    pub fn len(&self) -> usize {
        self.trees.by_gfn.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of heap for nodes: in use, at hand for the next operation, or waiting for readers. Dirty logs come
    /// on top.
    pub fn bytes(&self) -> usize {
        let Each { by_gfn, by_hva, by_id, logs } = &self.trees;
        by_gfn.bytes() + by_hva.bytes() + by_id.bytes() + logs.bytes()
    }

    pub(super) fn begin(&mut self) -> Transaction<'_> {
        let len = self.len();
        let Each { by_gfn, by_hva, by_id, logs } = &mut self.trees;
        let edits =
            Each { by_gfn: by_gfn.edit(), by_hva: by_hva.edit(), by_id: by_id.edit(), logs: logs.edit() };
        Transaction::new(edits, self.limits, len, mem::take(&mut self.spare))
    }

    /// What the last transaction meant has been done.
    pub(super) fn done(&mut self, Effects { mut zap, .. }: Effects) {
        zap.clear();
        zap.shrink_to(64);
        self.spare = zap;
    }

    /// The current version, for publication.
    pub(crate) fn set(&self) -> Set {
        let Each { by_gfn, by_hva, by_id, logs } = &self.trees;
        let roots =
            Each { by_gfn: by_gfn.root(), by_hva: by_hva.root(), by_id: by_id.root(), logs: logs.root() };
        Set { roots, len: self.len() }
    }

    /// The current version, for its owner.
    fn version(&self) -> Version<'_> {
        // SAFETY: reclaiming takes `&mut self`, which the borrow excludes.
        unsafe { self.set().read() }
    }

    /// Takes nodes back for later operations, and frees dirty logs.
    ///
    /// # Safety
    /// They come from this map, and nobody reads a version from before they were left over.
    pub(crate) unsafe fn reclaim(&mut self, Leftovers { nodes, logs }: Leftovers) {
        // SAFETY: the caller's word.
        unsafe {
            self.trees.by_gfn.reclaim(nodes.by_gfn);
            self.trees.by_hva.reclaim(nodes.by_hva);
            self.trees.by_id.reclaim(nodes.by_id);
            self.trees.logs.reclaim(nodes.logs);
        }
        for log in logs {
            // SAFETY: the caller's word; a log ends once.
            unsafe { log.free() };
        }
    }
}

impl Drop for SlotMap {
    fn drop(&mut self) {
        // SAFETY: with `&mut self` there is no reader, and the map dies.
        unsafe { self.set().read().views.logs.range(0..).for_each(|(_, log)| log.free()) };
    }
}

impl Edits<'_> {
    /// Makes the next of the operations below succeed in every index.
    pub(super) fn reserve(&mut self, logs: bool) -> Result<(), pool::NoMemory> {
        // A move is two edits of the gfn index.
        self.by_gfn.reserve(2)?;
        self.by_hva.reserve(1)?;
        self.by_id.reserve(1)?;
        if logs { self.logs.reserve(1) } else { Ok(()) }
    }

    pub(super) fn insert(&mut self, slot: &Slot) -> Result<(), pool::NoMemory> {
        let gfn = slot.gfns.start.0;
        self.by_gfn.insert(gfn, Packed::new(slot), ())?;
        self.by_hva.insert(hva_key(slot.hva, slot.id), gfn, slot.hvas().end.0)?;
        self.by_id.insert(slot.id.0, gfn, ())?;
        Ok(())
    }

    /// Removes slot `id`, if there is one.
    pub(super) fn remove(&mut self, id: SlotId) -> Result<Option<Slot>, pool::NoMemory> {
        let Some(gfn) = self.by_id.remove(id.0)? else { return Ok(None) };
        let Some(slot) = self.by_gfn.remove(gfn)?.map(|packed| packed.slot(Gfn(gfn))) else {
            return Ok(None);
        };
        self.by_hva.remove(hva_key(slot.hva, id))?;
        Ok(Some(slot))
    }

    /// Makes `old` into `new`, which has its id, size and host address.
    pub(super) fn replace(&mut self, old: &Slot, new: &Slot) -> Result<(), pool::NoMemory> {
        let gfn = new.gfns.start.0;
        if old.gfns != new.gfns {
            self.by_gfn.remove(old.gfns.start.0)?;
            self.by_hva.insert(hva_key(new.hva, new.id), gfn, new.hvas().end.0)?;
            self.by_id.insert(new.id.0, gfn, ())?;
        }
        self.by_gfn.insert(gfn, Packed::new(new), ())?;
        Ok(())
    }

    pub(super) fn start_log(&mut self, id: SlotId, log: Log) -> Result<(), pool::NoMemory> {
        self.logs.insert(id.0, log, ()).map(drop)
    }

    pub(super) fn end_log(&mut self, id: SlotId) -> Result<Option<Log>, pool::NoMemory> {
        self.logs.remove(id.0)
    }

    /// The version in the making, as far as it has come.
    pub(super) fn version(&self) -> Version<'_> {
        let Each { by_gfn, by_hva, by_id, logs } = self;
        let views =
            Each { by_gfn: by_gfn.view(), by_hva: by_hva.view(), by_id: by_id.view(), logs: logs.view() };
        Version { views, len: 0 }
    }

    /// Whether there is a slot of this id.
    pub(super) fn has(&self, id: SlotId) -> bool {
        self.by_id.view().get(id.0).is_some()
    }

    /// Makes it the map's current version.
    pub(super) fn publish(self, len: usize, logs: Vec<Log>) -> (Set, Leftovers) {
        let (by_gfn, old_by_gfn) = self.by_gfn.publish();
        let (by_hva, old_by_hva) = self.by_hva.publish();
        let (by_id, old_by_id) = self.by_id.publish();
        let (log_root, old_logs) = self.logs.publish();
        let nodes = Each { by_gfn: old_by_gfn, by_hva: old_by_hva, by_id: old_by_id, logs: old_logs };
        (Set { roots: Each { by_gfn, by_hva, by_id, logs: log_root }, len }, Leftovers { nodes, logs })
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
        Version { views, len: self.len }
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

    pub(crate) fn over_hvas(self, hvas: Span<Hva>, mut visit: impl FnMut(Span<Gfn>)) {
        if hvas.is_empty() {
            return;
        }
        let until = hva_key(hvas.end, SlotId(0));
        for (key, gfn, end) in self.views.by_hva.overlapping(hvas.start.0, until) {
            let start = (key >> 32) as u64;
            let frame = |bytes: u64| Gfn(gfn) + (bytes >> PAGE_SHIFT);
            let (from, to) = (hvas.start.0.max(start), hvas.end.0.min(end));
            visit(Span::new(frame(from - start), frame(to - start + LOW)));
        }
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

    /// Whether any slot has a dirty log.
    #[inline(always)]
    pub(crate) fn logs_any(self) -> bool {
        !self.views.logs.is_empty()
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::rules::MAX_PAGES;

    #[test]
    fn a_slot_survives_packing() {
        let far = Hva(!LOW);
        for (pages, hva, id) in [(1, Hva(0), 0), (MAX_PAGES, far, u32::MAX), (0x1fff, Hva(0x7000), 77)] {
            let slot = Slot::new(SlotId(id), Gfn(0x12345), pages, hva);
            for slot in [slot, slot.readonly(), slot.log_dirty(), slot.readonly().log_dirty()] {
                assert_eq!(Packed::new(&slot).slot(slot.gfns.start), slot);
            }
        }
    }

    #[test]
    fn ranges_begin_with_the_slot_that_reaches_in() {
        let mut map = SlotMap::default();
        let slot = |id: u32| Slot::new(SlotId(id), Gfn(u64::from(id) * 10), 8, Hva(0x1000));
        map.commit(|tx| (0..100).try_for_each(|id| tx.create(slot(id)))).unwrap();
        let ids =
            |from, to| map.range(Span::new(Gfn(from), Gfn(to))).map(|slot| slot.id.0).collect::<Vec<_>>();
        assert_eq!(ids(17, 31), [1, 2, 3]);
        assert_eq!(ids(18, 30), [2], "frames 18 and 19 are nobody's");
        assert_eq!(ids(0, 1), [0]);
        assert_eq!(ids(5000, 6000), [0; 0]);
        assert_eq!(ids(50, 50), [0; 0]);
        assert_eq!(ids(0, u64::MAX).len(), 100);
    }
}
