//! Versions of the slots as readers see them.
//!
//! ```text
//! word        version number << 1 | in progress
//! cells       [ v32 | v33 | v18 | v19 | … ]        version n lies in cell n mod 16
//! ```
//! One store of the word publishes a version; one load of it tells a reader which set is current, its number, and
//! whether readers of the one before may still be about. So a look-up and the number that it is remembered under
//! never come from two versions. KVM has two sets and two loads, hence its rule that nothing be cached while
//! an update is in progress; here the bit is information for users ([`super::Generation`]).
//!
//! **When does a transaction wait?** What is taken away (a slot deleted, moved, its log ended) is gone for every
//! reader when the transaction returns: it ends in a grace period. A transaction that only creates takes nothing
//! away: it publishes and returns, and what it left over waits until the next grace period, or until
//! the cells run out: one wait for sixteen creations. A cell is written again only after a grace period since
//! it was replaced.

use super::bitmap::Bitmap;
use super::hint::HvaHints;
use super::{Limits, SlotMap, SlotsVersion};
use crate::sync::prim::{Acquire, AtomicU64, Mutex, Padded, Relaxed, Release};
use crate::sync::readside::{ReadSide, Seat, Section};
use crate::table::Version as Invalidated;
use alloc::vec::Vec;
use core::cell::UnsafeCell;

/// A version, to be published.
type Set = slat_slots::VersionRoot<Bitmap>;
type Leftovers = slat_slots::Leftovers<Bitmap>;

/// Versions that can exist at once.
const CELLS: u64 = 16;

const IN_PROGRESS: u64 = 1;

/// The memslots of one address space, with their past as far as readers may hold it.
pub(crate) struct SlotSets {
    word: Padded<AtomicU64>,
    cells: [UnsafeCell<(Set, Name)>; CELLS as usize],
    /// The number of the invalidation under which the last version was published.
    changed: AtomicU64,
    pub(super) hva_hints: HvaHints,
    /// Ids are below this.
    pub(crate) ids: u32,
    /// The transaction mutex: outermost of our own locks.
    pub(crate) writer: Mutex<Writer>,
}

/// What the holder of the transaction mutex has.
pub(crate) struct Writer {
    pub(crate) map: SlotMap,
    /// No reader holds a version older than this one.
    oldest: u64,
    /// What versions since then left over: fewer than there are cells, so that it never grows.
    leftovers: Vec<Leftovers>,
}

// SAFETY: a published cell is only read; the others are written under `writer`, and only after a grace period
// since they were replaced.
unsafe impl Sync for SlotSets {}

/// A published version of one address space, or a VM, among all of the process. Numbers are a space's own: hints, which their users
/// may take from one VM to another, remember names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Name(pub(crate) u64);

impl Name {
    pub(crate) fn next() -> Self {
        /// Not of a VM, and nothing is ordered by it: `core`'s in every build.
        static LAST: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
        Self(LAST.fetch_add(1, Relaxed) + 1)
    }
}

/// The published version, held still by a section of the read side.
pub(crate) struct Reading<'g> {
    pub(crate) version: SlotsVersion<'g>,
    pub(crate) number: u64,
    pub(crate) name: Name,
    _section: Section<'g>,
}

impl SlotSets {
    pub(crate) fn new(limits: Limits, all_dirty: bool) -> Self {
        let map = SlotMap::with_logs(limits, all_dirty);
        let set = (map.root(), Name::next());
        Self {
            word: Padded::default(),
            cells: core::array::from_fn(|_| UnsafeCell::new(set)),
            changed: AtomicU64::new(0),
            ids: limits.ids,
            hva_hints: HvaHints::default(),
            writer: Mutex::new(Writer { map, oldest: 0, leftovers: Vec::with_capacity(CELLS as usize) }),
        }
    }

    /// The number of the published version.
    #[inline(always)]
    pub(crate) fn number(&self) -> u64 {
        // ORDER(publish): Acquire: a fault's second look at the epoch stays below this load.
        self.word.0.load(unless_seeded!(NumberRelaxed, Acquire)) >> 1
    }

    /// The same, and whether readers of an older one may still be about.
    pub(crate) fn progress(&self) -> (u64, bool) {
        let word = self.word.0.load(Acquire);
        (word >> 1, word & IN_PROGRESS != 0)
    }

    /// The published version, on a seat that this thread holds.
    #[inline(always)]
    pub(crate) fn read<'g>(&'g self, reads: &ReadSide, seat: &'g Seat) -> Reading<'g> {
        let section = reads.enter(seat);
        // ORDER(publish): Acquire pairs with the Release in `publish`: the cell and the nodes are written before
        // they are seen. It also keeps a fault's second look at the epoch below this load.
        let number = self.word.0.load(Acquire) >> 1;
        // SAFETY: written before it was published, and not again until a grace period after it was replaced:
        // this section began before. The same holds for its nodes.
        let (version, name) = unsafe {
            let (set, name) = &*self.cells[(number % CELLS) as usize].get();
            (set.read(), *name)
        };
        Reading { version, number, name, _section: section }
    }

    /// Whether nothing has been published since invalidation `version`: what was said of the slots as of that number is still
    /// true. Asked after the epoch was read.
    #[inline]
    pub(crate) fn unchanged_since(&self, version: Invalidated) -> bool {
        version >= self.published_under()
    }

    /// The invalidation under which the slots were published, or are about to be.
    pub(crate) fn published_under(&self) -> Invalidated {
        // ORDER(stamp): Acquire, below the epoch: a fault that begins after a transaction sees its number.
        Invalidated(self.changed.load(Acquire))
    }

    /// Publishes `set` under the next number, inside invalidation `under`; `in_progress` until [`Writer::wait`].
    ///
    /// # Safety
    /// Under `writer`, which has a free cell ([`Writer::make_room`]).
    pub(crate) unsafe fn publish(&self, set: Set, under: Invalidated, in_progress: bool) {
        // Before the version: a stale answer is refused a moment early, and looked up.
        // ORDER(stamp): Release; pairs with `unchanged_since`.
        self.changed.store(under.0, Release);
        let number = self.number() + 1;
        // SAFETY: the cell of a version without readers, and one writer.
        unsafe { *self.cells[(number % CELLS) as usize].get() = (set, Name::next()) };
        // ORDER(publish): Release; see `read`.
        self.word.0.store(number << 1 | u64::from(in_progress), unless_seeded!(PublishRelaxed, Release));
    }
}

impl Writer {
    /// Keeps what the version that was just replaced left over, until readers have been waited for.
    pub(crate) fn keep(&mut self, leftovers: Leftovers) {
        self.leftovers.push(leftovers);
    }

    /// Makes the next publication possible: a free cell. Waits for readers where there is none.
    pub(crate) fn make_room(&mut self, sets: &SlotSets, reads: &ReadSide) {
        if sets.number() + 1 - self.oldest >= CELLS && !seeded!(CellReusedEarly) {
            self.wait(sets, reads);
        }
    }

    /// Waits until no reader has any version but the published one, and takes back what older ones left over.
    /// The thread must be in no section.
    pub(crate) fn wait(&mut self, sets: &SlotSets, reads: &ReadSide) {
        if !seeded!(SlotsFreedEarly) {
            reads.synchronize();
        }
        let number = sets.number();
        self.oldest = number;
        for leftovers in self.leftovers.drain(..) {
            // SAFETY: left over before the grace period that just ended.
            unsafe { self.map.reclaim(leftovers) };
        }
        // ORDER(publish): Release again: readers take the version from this store from now on.
        sets.word.0.store(number << 1, Release);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        for leftovers in self.leftovers.drain(..) {
            // SAFETY: the VM is dropped: there is no reader.
            unsafe { self.map.reclaim(leftovers) };
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests;
