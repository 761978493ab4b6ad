//! Slots with snapshots: one owner changes them, any number of readers hold versions.
//!
//! ```text
//! SharedSlots ──▶ current: version 5        past: [ version 3 | version 4 ]      debts: [ of 3 | of 4 ]
//!                              ▲                        ▲
//! Snapshot ────────────────────┘       Snapshot ────────┘         each version: an Arc of its root
//! ```
//! A transaction replaces the current version. Nodes that only older versions contain are the debt of the
//! replaced version. The first transaction that finds no snapshot of version n or older reuses the nodes of
//! version n's debt. So a commit waits for no reader. A reader pays one reference count per snapshot, and
//! nothing per look-up.
//!
//! The trees live until the last snapshot is dropped, even without the owner.

use crate::addr::{Gfn, Hva, Span};
use crate::log::Log;
use crate::map::SlotMap;
use crate::rules::{CommitError, Limits, SlotError};
use crate::slot::{Slot, SlotId};
use crate::transaction::Transaction;
use crate::version::{Leftovers, Version, VersionRoot};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::cell::UnsafeCell;
use core::convert::Infallible;
use core::fmt;
use core::mem;

/// The memslots of an address space, with snapshots.
///
/// ```
/// use slat_slots::{Gfn, Hva, SharedSlots, Slot, SlotId};
/// let mut slots: SharedSlots = SharedSlots::default();
/// slots.commit(|tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(0x7000_0000))))?;
/// let before = slots.snapshot();
/// slots.commit(|tx| tx.delete(SlotId(0)))?;
/// assert!(before.find(Gfn(5)).is_some() && slots.snapshot().is_empty());
/// # Ok::<(), slat_slots::SlotError>(())
/// ```
pub struct SharedSlots<L = ()> {
    current: Snapshot<L>,
    /// Replaced versions, oldest first. `Home` has the debt of each.
    past: VecDeque<Snapshot<L>>,
}

/// One version of the slots, which does not change. A clone shares the version, and costs one atomic increment.
///
/// ```
/// # use slat_slots::{Gfn, Hva, SharedSlots, Slot, SlotId, Span};
/// # let mut slots: SharedSlots = SharedSlots::default();
/// # slots.commit(|tx| tx.create(Slot::new(SlotId(0), Gfn(16), 16, Hva(0x7000_0000))))?;
/// let snapshot = slots.snapshot();
/// let device = std::thread::spawn({
///     let snapshot = snapshot.clone();
///     move || snapshot.find(Gfn(20)).map(|slot| slot.hva_of(Gfn(20)))
/// });
/// assert_eq!(device.join().unwrap(), Some(Hva(0x7000_4000)));
/// for slot in snapshot.range(Span::new(Gfn(0), Gfn(20))) {
///     assert_eq!(snapshot.get(slot.id), Some(slot));
/// }
/// # Ok::<(), slat_slots::SlotError>(())
/// ```
/// Values that were read in a snapshot are used before the snapshot is dropped: its nodes are reused afterwards.
///
/// ```compile_fail,E0716
/// # use slat_slots::{Gfn, SharedSlots};
/// # let slots: SharedSlots = SharedSlots::default();
/// let version = slots.snapshot().version();
/// version.find(Gfn(5));
/// ```
pub struct Snapshot<L = ()>(Arc<Held<L>>);

/// A version, and the trees that keep its nodes.
struct Held<L> {
    root: VersionRoot<L>,
    home: Arc<Home<L>>,
}

/// The trees of all versions: accessed by the `SharedSlots`, kept alive by every snapshot.
struct Home<L>(UnsafeCell<(SlotMap<L>, VecDeque<Leftovers<L>>)>);

// SAFETY: only `SharedSlots::commit` and `Drop` access the inside, through `&mut`. Snapshots share nodes, which
// are plain data, and logs.
unsafe impl<L: Send + Sync> Send for Home<L> {}
// SAFETY: as above.
unsafe impl<L: Send + Sync> Sync for Home<L> {}

impl<L> Drop for Home<L> {
    fn drop(&mut self) {
        let (map, debts) = self.0.get_mut();
        for debt in debts.drain(..) {
            // SAFETY: from this map; the last snapshot was dropped.
            unsafe { map.reclaim(debt) };
        }
    }
}

impl<L: Log> Default for SharedSlots<L> {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl<L> fmt::Debug for SharedSlots<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSlots").field("current", &self.current).finish_non_exhaustive()
    }
}

impl<L: Log> SharedSlots<L> {
    /// Creates slots without any slot.
    pub fn new(limits: Limits) -> Self {
        Self::with_logs(limits, false)
    }

    /// Like [`new`](Self::new); with `logs_set`, a new [`Log`] starts with every page written.
    pub fn with_logs(limits: Limits, logs_set: bool) -> Self {
        let map = SlotMap::with_logs(limits, logs_set);
        let root = map.root();
        let home = Arc::new(Home(UnsafeCell::new((map, VecDeque::new()))));
        Self { current: Snapshot(Arc::new(Held { root, home })), past: VecDeque::new() }
    }

    /// Runs `operations` and commits their result. On an error, from them or from the commit, nothing changes.
    /// Waits for no reader.
    pub fn commit<R>(
        &mut self,
        operations: impl FnOnce(&mut Transaction<'_, L>) -> Result<R, SlotError>,
    ) -> Result<R, SlotError> {
        Ok(self.commit_with(operations, |_| Ok::<_, Infallible>(()))?)
    }

    /// Commits together with an operation of the embedder that may fail, such as a system call that gives
    /// another MMU the same slots. Calls `confirm` once, with the result of the slot operations, after all of
    /// them have succeeded; nothing can fail after it. If it fails, nothing has changed.
    ///
    /// ```
    /// use slat_slots::{CommitError, Gfn, Hva, SharedSlots, Slot, SlotId};
    /// let mut slots: SharedSlots = SharedSlots::default();
    /// let ram = Slot::new(SlotId(0), Gfn(0), 512, Hva(0x7000_0000));
    /// // KVM_SET_USER_MEMORY_REGION returned EINVAL.
    /// let refused = slots.commit_with(|tx| tx.create(ram), |()| Err("errno 22"));
    /// assert_eq!(refused, Err(CommitError::Refused("errno 22")));
    /// assert!(slots.snapshot().is_empty());
    /// ```
    pub fn commit_with<R, E>(
        &mut self,
        operations: impl FnOnce(&mut Transaction<'_, L>) -> Result<R, SlotError>,
        confirm: impl FnOnce(&R) -> Result<(), E>,
    ) -> Result<R, CommitError<E>> {
        let home = self.current.0.home.clone();
        // SAFETY: `&mut self`; each home has one `SharedSlots`.
        let (map, debts) = unsafe { &mut *home.0.get() };
        // Oldest first: an older version may contain nodes of a newer debt.
        while self.past.front_mut().is_some_and(|version| Arc::get_mut(&mut version.0).is_some()) {
            self.past.pop_front();
            if let Some(debt) = debts.pop_front() {
                // SAFETY: from this map. No snapshot of this version or an older one is left.
                unsafe { map.reclaim(debt) };
            }
        }
        let mut tx = map.begin();
        let result = operations(&mut tx)?;
        tx.check()?;
        confirm(&result).map_err(CommitError::Refused)?;
        let (root, leftovers, effects) = tx.finish();
        map.done(effects);
        let next = Snapshot(Arc::new(Held { root, home: home.clone() }));
        debts.push_back(leftovers);
        self.past.push_back(mem::replace(&mut self.current, next));
        Ok(result)
    }

    /// Returns a snapshot of the current version.
    pub fn snapshot(&self) -> Snapshot<L> {
        self.current.clone()
    }
}

impl<L> Clone for Snapshot<L> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<L> fmt::Debug for Snapshot<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.version().fmt(f)
    }
}

impl<L> Snapshot<L> {
    /// Returns the version, for further look-ups.
    #[inline]
    pub fn version(&self) -> Version<'_, L> {
        // SAFETY: `home` keeps the map. Leftovers since this version are reclaimed when `commit` finds its
        // `Arc` not shared, or when `home` is dropped.
        unsafe { self.0.root.read() }
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

    /// Returns the log of slot `id`, if it has one.
    pub fn log(&self, id: SlotId) -> Option<&L> {
        self.version().log(id)
    }

    /// Calls `visit` with the frames that map to `hvas`, in order of host addresses: once for each slot.
    pub fn over_hvas(&self, hvas: Span<Hva>, visit: impl FnMut(Span<Gfn>)) {
        self.version().over_hvas(hvas, visit);
    }

    /// Returns the slots that overlap `gfns`, in order.
    pub fn range(&self, gfns: Span<Gfn>) -> impl Iterator<Item = Slot> {
        self.version().range(gfns)
    }

    /// Returns all slots, in order of guest frames.
    pub fn iter(&self) -> impl Iterator<Item = Slot> {
        self.range(Span::new(Gfn(0), Gfn(u64::MAX)))
    }

    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.version().len()
    }

    /// Whether there are no slots.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
