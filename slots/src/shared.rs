//! Slots with snapshots: one owner changes them, any number of readers hold versions.
//!
//! ```text
//! SharedSlots ──▶ current: version 5        past: [ version 3 | version 4 ]      debts: [ of 3 | of 4 ]
//!                              ▲                        ▲
//! Snapshot ────────────────────┘       Snapshot ────────┘         each version: an Arc of its root
//! ```
//! A transaction replaces the current version. The nodes that only older versions hold are its debt. The debt of version n is paid,
//! and its nodes are used again, in the first transaction that finds no snapshot of version n or of an older one. So a commit waits
//! for no reader, and a reader pays one reference count for each snapshot, and nothing for a look-up.
//!
//! The trees live as long as the last snapshot, also without the owner.

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

/// The memslots of an address space, with snapshots. See the module's header.
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
    /// Versions that were replaced, the oldest first. Each has its debt in `Home`.
    past: VecDeque<Snapshot<L>>,
}

/// One version of the slots, which stays as it is. A clone is the same version, and costs one atomic increment.
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
pub struct Snapshot<L = ()>(Arc<Held<L>>);

/// A version, and what keeps its nodes.
struct Held<L> {
    root: VersionRoot<L>,
    home: Arc<Home<L>>,
}

/// The trees of all versions: reached by the one `SharedSlots`, kept by every snapshot.
struct Home<L>(UnsafeCell<(SlotMap<L>, VecDeque<Leftovers<L>>)>);

// SAFETY: only `SharedSlots::commit` and `Drop` look inside, each by `&mut`. What snapshots share is nodes, which are plain data, and
// logs.
unsafe impl<L: Send + Sync> Send for Home<L> {}
// SAFETY: as above.
unsafe impl<L: Send + Sync> Sync for Home<L> {}

impl<L> Drop for Home<L> {
    fn drop(&mut self) {
        let (map, debts) = self.0.get_mut();
        for debt in debts.drain(..) {
            // SAFETY: from this map; the last snapshot is gone.
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
    /// No slots.
    pub fn new(limits: Limits) -> Self {
        Self::with_logs(limits, false)
    }

    /// The same; with `logs_set`, every page of a fresh [`Log`] counts as written.
    pub fn with_logs(limits: Limits, logs_set: bool) -> Self {
        let map = SlotMap::with_logs(limits, logs_set);
        let root = map.root();
        let home = Arc::new(Home(UnsafeCell::new((map, VecDeque::new()))));
        Self { current: Snapshot(Arc::new(Held { root, home })), past: VecDeque::new() }
    }

    /// Runs `operations` and makes what they made the current version. An error, theirs or ours, changes nothing. Waits for no
    /// reader.
    pub fn commit<R>(
        &mut self,
        operations: impl FnOnce(&mut Transaction<'_, L>) -> Result<R, SlotError>,
    ) -> Result<R, SlotError> {
        Ok(self.commit_with(operations, |_| Ok::<_, Infallible>(()))?)
    }

    /// The same with an operation of the embedder's own that may fail: a system call that gives another MMU the same slots.
    /// `confirm` is asked once, when every slot operation has succeeded, with their result. After it nothing can fail. Where it
    /// refuses, nothing has changed.
    ///
    /// ```
    /// use slat_slots::{CommitError, Gfn, Hva, SharedSlots, Slot, SlotId};
    /// let mut slots: SharedSlots = SharedSlots::default();
    /// let ram = Slot::new(SlotId(0), Gfn(0), 512, Hva(0x7000_0000));
    /// // KVM_SET_USER_MEMORY_REGION says EINVAL.
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
        // SAFETY: `&mut self`, and there is one `SharedSlots` for each home.
        let (map, debts) = unsafe { &mut *home.0.get() };
        // From the oldest on: nodes of a newer debt may be in an older version.
        let unheld = |version: &mut Snapshot<L>| Arc::get_mut(&mut version.0).is_some();
        while self.past.front_mut().is_some_and(|version| seeded!("snapshot-unasked") || unheld(version)) {
            self.past.pop_front();
            if let Some(debt) = debts.pop_front() {
                // SAFETY: from this map. No snapshot of this version is left, and none of an older one.
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

    /// The current version.
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
    /// The version, for all look-ups that there are.
    #[inline]
    pub fn version(&self) -> Version<'_, L> {
        // SAFETY: `home` keeps the map. Leftovers since this version are reclaimed by `commit`, which finds its `Arc` shared, or by
        // the drop of `home`.
        unsafe { self.0.root.read() }
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

    /// The log of slot `id`, if it has one.
    pub fn log(&self, id: SlotId) -> Option<&L> {
        self.version().log(id)
    }

    /// Calls `visit` with the frames behind `hvas`, slot by slot, in order of host addresses: once for each slot that shares them.
    pub fn over_hvas(&self, hvas: Span<Hva>, visit: impl FnMut(Span<Gfn>)) {
        self.version().over_hvas(hvas, visit);
    }

    /// The slots that have any of `gfns`, in order.
    pub fn range(&self, gfns: Span<Gfn>) -> impl Iterator<Item = Slot> {
        self.version().range(gfns)
    }

    /// All slots, in order of guest frames.
    pub fn iter(&self) -> impl Iterator<Item = Slot> {
        self.range(Span::new(Gfn(0), Gfn(u64::MAX)))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.version().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
