//! `SlotMap`: the slots of one address space, found by guest frame, by host address and by id.
//!
//! A `SlotMap` is an ordinary map with one owner. [`SharedSlots`](crate::SharedSlots) adds snapshots. An
//! embedder with its own read side (RCU, epochs) publishes versions from [`SlotMap::begin`], and returns their
//! nodes by [`SlotMap::reclaim`].
//!
//! ```
//! use slat_slots::{Gfn, Hva, Limits, Slot, SlotId, SlotMap, Span};
//!
//! let mut slots = SlotMap::<()>::new(Limits::default());
//! slots.commit(|tx| {
//!     tx.create(Slot::new(SlotId(7), Gfn(0x100), 16, Hva(0x7000_0000)))?;
//!     tx.create(Slot::new(SlotId(8), Gfn(0x900), 16, Hva(0x7000_8000))) // shares eight host pages with 7
//! })?;
//! assert_eq!(slots.find(Gfn(0x10f)).unwrap().id, SlotId(7));
//!
//! let mut behind = Vec::new();
//! slots.over_hvas(Span::new(Hva(0x7000_9000), Hva(0x7000_9001)), |gfns| behind.push(gfns.start));
//! assert_eq!(behind, [Gfn(0x109), Gfn(0x901)]);
//! # Ok::<(), slat_slots::SlotError>(())
//! ```

use crate::addr::{Gfn, Hva, Span};
use crate::log::Log;
use crate::rules::{Limits, SlotError};
use crate::slot::{Slot, SlotId};
use crate::transaction::{Effects, Transaction};
use crate::tree::Tree;
use crate::version::{Each, Facts, Leftovers, Trees, Version, VersionRoot};
use alloc::vec::Vec;
use core::fmt;
use core::mem;

/// The slots of one address space, with one owner.
pub struct SlotMap<L = ()> {
    trees: Trees<L>,
    limits: Limits,
    facts: Facts,
    /// Whether a new log starts with every page written.
    logs_set: bool,
    /// Memory for the `zap` list of the next transaction.
    spare: Vec<Span<Gfn>>,
}

impl<L> fmt::Debug for SlotMap<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotMap")
            .field("len", &self.facts.len)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl<L: Log> Default for SlotMap<L> {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl<L: Log> SlotMap<L> {
    /// Creates a map without slots; allocates nothing.
    pub fn new(limits: Limits) -> Self {
        Self::with_logs(limits, false)
    }

    /// Creates a map without slots. With `logs_set`, a new [`Log`] starts with every page written.
    pub fn with_logs(limits: Limits, logs_set: bool) -> Self {
        let (by_gfn, by_hva, by_id) = (Tree::new(), Tree::new(), Tree::new());
        let trees = Each { by_gfn, by_hva, by_id, logs: Tree::new(), backings: Tree::new() };
        Self { trees, limits, facts: Facts { len: 0, disjoint: true, logs: 0 }, logs_set, spare: Vec::new() }
    }

    /// Sets whether a new [`Log`] starts with every page written. Existing logs do not change.
    pub fn set_logs_set(&mut self, logs_set: bool) {
        self.logs_set = logs_set;
    }

    /// Whether a new [`Log`] starts with every page written.
    pub fn logs_set(&self) -> bool {
        self.logs_set
    }

    /// Runs `operations` and commits their result. On an error, from them or from the commit, nothing changes.
    pub fn commit<R>(
        &mut self,
        operations: impl FnOnce(&mut Transaction<'_, L>) -> Result<R, SlotError>,
    ) -> Result<R, SlotError> {
        let mut tx = self.begin();
        let result = operations(&mut tx)?;
        tx.check()?;
        let (_, leftovers, effects) = tx.finish();
        // SAFETY: from this map; `&mut self` excludes readers, as `VersionRoot::read` requires.
        unsafe { self.reclaim(leftovers) };
        let _ = self.done(effects);
        Ok(result)
    }

    /// Returns the slot that contains `gfn`.
    #[inline]
    pub fn find(&self, gfn: Gfn) -> Option<Slot> {
        self.version().find(gfn)
    }

    /// Returns the slot with this id.
    pub fn get(&self, id: SlotId) -> Option<Slot> {
        self.version().get(id)
    }

    /// Calls `visit` with the frames that map to `hvas`, slot by slot.
    pub fn over_hvas(&self, hvas: Span<Hva>, visit: impl FnMut(Span<Gfn>)) {
        self.version().over_hvas(hvas, visit);
    }

    /// Returns the slots that overlap `gfns`, in order.
    pub fn range(&self, gfns: Span<Gfn>) -> impl Iterator<Item = Slot> {
        self.version().range(gfns)
    }

    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.facts.len
    }

    /// Whether there are no slots.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of heap for nodes: in use, free, or waiting for readers. Does not include dirty logs.
    pub fn bytes(&self) -> usize {
        let Each { by_gfn, by_hva, by_id, logs, backings } = &self.trees;
        by_gfn.bytes() + by_hva.bytes() + by_id.bytes() + logs.bytes() + backings.bytes()
    }

    /// Begins the next version; [`Transaction::finish`] makes it current. Dropping the transaction undoes it.
    ///
    /// For an embedder whose readers may read older versions. It publishes the [`VersionRoot`], and passes the
    /// [`Leftovers`] to [`reclaim`](Self::reclaim) after all readers of older versions have finished.
    ///
    /// ```
    /// use slat_slots::{Gfn, Hva, Slot, SlotId, SlotMap};
    /// let mut slots = SlotMap::<()>::default();
    /// let mut tx = slots.begin();
    /// tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(0x7000_0000)))?;
    /// let (version, leftovers, effects) = tx.finish();
    /// // Here: publish `version`, and wait for the readers of the version before.
    /// // SAFETY: left over by this map; there are no readers.
    /// unsafe { slots.reclaim(leftovers) };
    /// assert_eq!(slots.done(effects), [], "no log has ended");
    /// // SAFETY: nothing is reclaimed while the version is read.
    /// assert_eq!(unsafe { version.read() }.find(Gfn(5)).unwrap().id, SlotId(0));
    /// # Ok::<(), slat_slots::SlotError>(())
    /// ```
    #[inline]
    pub fn begin(&mut self) -> Transaction<'_, L> {
        let Each { by_gfn, by_hva, by_id, logs, backings } = &mut self.trees;
        let (by_gfn, by_hva, by_id) = (by_gfn.edit(), by_hva.edit(), by_id.edit());
        let edits = Each { by_gfn, by_hva, by_id, logs: logs.edit(), backings: backings.edit() };
        Transaction::new(edits, (self.limits, self.logs_set), &mut self.facts, mem::take(&mut self.spare))
    }

    /// Ends the last transaction after its effects were applied. Returns the frames whose logging has ended,
    /// and reuses the lists' memory.
    pub fn done(&mut self, Effects { mut zap, unlogged, .. }: Effects) -> Vec<Span<Gfn>> {
        zap.clear();
        zap.shrink_to(64);
        self.spare = zap;
        unlogged
    }

    /// Returns the current version, for publication.
    pub fn root(&self) -> VersionRoot<L> {
        let Each { by_gfn, by_hva, by_id, logs, backings } = &self.trees;
        let (by_gfn, by_hva, by_id) = (by_gfn.root(), by_hva.root(), by_id.root());
        let roots = Each { by_gfn, by_hva, by_id, logs: logs.root(), backings: backings.root() };
        VersionRoot { roots, facts: self.facts }
    }

    /// Returns the current version, for look-ups by the owner.
    pub fn version(&self) -> Version<'_, L> {
        // SAFETY: `reclaim` takes `&mut self`, which the borrow excludes.
        unsafe { self.root().read() }
    }
}

impl<L> SlotMap<L> {
    /// Frees nodes for later operations, and drops logs that have ended.
    ///
    /// # Safety
    /// `leftovers` comes from this map, and all readers of versions older than it have finished.
    pub unsafe fn reclaim(&mut self, Leftovers { nodes, logs }: Leftovers<L>) {
        // SAFETY: the caller keeps the condition.
        unsafe {
            self.trees.by_gfn.reclaim(nodes.by_gfn);
            self.trees.by_hva.reclaim(nodes.by_hva);
            self.trees.by_id.reclaim(nodes.by_id);
            self.trees.logs.reclaim(nodes.logs);
            self.trees.backings.reclaim(nodes.backings);
        }
        for log in logs {
            // SAFETY: the caller keeps the condition; a log ends once.
            unsafe { log.free() };
        }
    }
}

impl<L> Drop for SlotMap<L> {
    fn drop(&mut self) {
        let logs = self.trees.logs.root();
        // SAFETY: `&mut self` excludes readers, and the map is being dropped.
        unsafe { logs.read().range(0..).for_each(|(_, log)| log.free()) };
    }
}

#[cfg(test)]
impl<L: Log> SlotMap<L> {
    /// Checks the invariants of all indexes, and that no node is lost.
    pub(crate) fn audit(&self) {
        let Each { by_gfn, by_hva, by_id, logs, backings } = &self.trees;
        assert!(by_gfn.accounts_for(0) && by_hva.accounts_for(0) && by_id.accounts_for(0));
        assert!(logs.accounts_for(0) && backings.accounts_for(0));
        assert_eq!((by_gfn.len(), by_id.len()), (by_hva.len(), self.len()));
        assert!(
            by_gfn.len() == self.len() || backings.len() > 0,
            "without private memory a slot is one part"
        );
    }

    /// Makes the allocator fail when an index has `more` nodes beyond those in use.
    pub(crate) fn limit_blocks(&mut self, more: usize) {
        let Each { by_gfn, by_hva, by_id, logs, backings } = &mut self.trees;
        backings.limit_more(more);
        by_gfn.limit_more(more);
        by_hva.limit_more(more);
        by_id.limit_more(more);
        logs.limit_more(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_begins_with_a_slot_that_overlaps_its_start() {
        let mut map = SlotMap::<()>::default();
        let slot = |id: u32| Slot::new(SlotId(id), Gfn(u64::from(id) * 10), 8, Hva(0x1000));
        map.commit(|tx| (0..100).try_for_each(|id| tx.create(slot(id)))).unwrap();
        let ids =
            |from, to| map.range(Span::new(Gfn(from), Gfn(to))).map(|slot| slot.id.0).collect::<Vec<_>>();
        assert_eq!(ids(17, 31), [1, 2, 3]);
        assert_eq!(ids(18, 30), [2], "frames 18 and 19 belong to no slot");
        assert_eq!(ids(0, 1), [0]);
        assert_eq!(ids(5000, 6000), [0; 0]);
        assert_eq!(ids(50, 50), [0; 0]);
        assert_eq!(ids(0, u64::MAX).len(), 100);
    }

    /// Slots are created and deleted at random, some with shared host addresses; look-ups of ranges must agree
    /// with a linear scan.
    #[test]
    fn host_ranges_are_found_with_and_without_aliases() {
        let mut map = SlotMap::<()>::default();
        let mut random = fastrand::Rng::with_seed(1);
        let mut random = |below: u64| random.u64(..below);
        let mut disjoint = [0, 0];
        for round in 0..if cfg!(miri) { 20 } else { 600 } {
            // For a hundred rounds each slot has a host range of its own, for the next hundred any range. In
            // between all slots are deleted.
            if round % 100 == 0 {
                let ids: Vec<_> = map.range(Span::new(Gfn(0), Gfn(u64::MAX))).map(|slot| slot.id).collect();
                map.commit(|tx| ids.into_iter().try_for_each(|id| tx.delete(id).map(drop))).unwrap();
            }
            let id = random(20);
            let place = if round / 100 % 2 == 0 { 2 * id } else { random(48) };
            let slot = Slot::new(SlotId(id as u32), Gfn(id << 12), 512, Hva(place << 20));
            map.commit(|tx| match tx.get(slot.id) {
                Some(_) => tx.delete(slot.id).map(drop),
                None => tx.create(slot),
            })
            .unwrap();
            let all: Vec<_> = map.range(Span::new(Gfn(0), Gfn(u64::MAX))).collect();
            let shared = all.iter().any(|a| all.iter().any(|b| a != b && a.hvas().overlaps(&b.hvas())));
            assert!(!(map.facts.disjoint && shared), "round {round}");
            disjoint[usize::from(map.facts.disjoint)] += 1;
            for _ in 0..30 {
                let range = Span::sized(Hva(random(52 << 8) << 12 | random(2)), 1 + (random(40) << 9));
                let mut found = Vec::new();
                map.over_hvas(range, |gfns| found.push(gfns));
                let frames = |slot: &Slot| {
                    let part = slot.hvas().clamp(&range);
                    let (from, to) = (part.start.0 - slot.hva.0, part.end.0 - slot.hva.0);
                    Span::new(slot.gfns.start + (from >> 12), slot.gfns.start + to.div_ceil(4096))
                };
                let mut scan: Vec<_> =
                    all.iter().filter(|slot| slot.hvas().overlaps(&range)).map(frames).collect();
                scan.sort_by_key(|gfns| gfns.start);
                found.sort_by_key(|gfns| gfns.start);
                assert_eq!(found, scan, "round {round}, {range:?}");
            }
        }
        assert!(
            cfg!(miri) || disjoint.iter().all(|&rounds| rounds > 50),
            "both cases were tested: {disjoint:?}"
        );
    }
}
