//! Versions of the slots, as readers see them.
//!
//! ```text
//! word        version number << 1 | in progress
//! cells       [ v32 | v33 | v18 | v19 | … ]        version n is in cell n mod 16
//! ```
//! One store of the word publishes a version. One load of it tells a reader which set is current, its number, and
//! whether readers of the previous one may still exist. A look-up and the number under which it is remembered therefore
//! never come from two versions. KVM has two sets and two loads, so it must cache nothing during an update. Here the
//! in-progress bit is only information for users ([`crate::memslots::Generation`]).
//!
//! **When does a transaction wait?** When a transaction returns, no reader sees what it took away (a slot deleted or
//! moved, a log ended), so it ends with a grace period. A transaction that only creates takes nothing away: it
//! publishes and returns. Its leftovers wait for the next grace period, or until the cells run out, which costs one
//! wait for sixteen creations. A cell is written again only after a grace period since it was replaced.

use super::bitmap::Bitmap;
use super::hint::HvaHints;
use super::{Limits, SlotMap, SlotsVersion};
use crate::sync::prim::{AtomicU64, Mutex, Padded, Relaxed, read_whole, written_whole};
use crate::sync::readside::{ReadSide, Seat, Section, Within};
use crate::version::Version as Invalidated;
use alloc::vec::Vec;
use core::cell::UnsafeCell;

/// A version to publish.
type Set = slat_slots::VersionRoot<Bitmap>;
type Leftovers = slat_slots::Leftovers<Bitmap>;

/// Maximum number of versions that exist at the same time.
const CELLS: u64 = 16;

const IN_PROGRESS: u64 = 1;

/// The memslots of one address space, with old versions that readers may still hold.
pub(crate) struct SlotSets {
    word: Padded<AtomicU64>,
    cells: [UnsafeCell<(Set, Name)>; CELLS as usize],
    /// The number of the invalidation that published the last version.
    changed: AtomicU64,
    pub(super) hva_hints: HvaHints,
    /// Upper bound of ids, exclusive.
    pub(crate) ids: u32,
    /// The transaction mutex, the outermost lock of the engine.
    pub(crate) writer: Mutex<Writer>,
}

/// The state that the transaction mutex protects.
pub(crate) struct Writer {
    pub(crate) map: SlotMap,
    /// The oldest version that a reader may hold.
    oldest: u64,
    /// Leftovers of the versions since then: fewer than there are cells, so the vector never grows.
    leftovers: Vec<Leftovers>,
}

// SAFETY: a published cell is only read. Other cells are written under `writer`, after a grace period since they were
// replaced.
unsafe impl Sync for SlotSets {}

/// The name of a published version, unique among all VMs and address spaces of the process. Numbers are unique in one
/// space only. Hints use names, because their users may take them from one VM to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Name(pub(crate) u64);

impl Name {
    pub(crate) fn next() -> Self {
        /// Shared by all VMs, and orders nothing, so it is `core`'s atomic in every build.
        static LAST: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
        Self(LAST.fetch_add(1, Relaxed) + 1)
    }
}

/// The published version, its number and its name, during a section `'g`.
#[derive(Clone, Copy)]
pub(crate) struct Published<'g> {
    pub(crate) version: SlotsVersion<'g>,
    pub(crate) number: u64,
    pub(crate) name: Name,
}

/// The published version, and the section of the read side that holds it.
///
/// The nodes and logs of a version may be freed when the section ends. [`SlotsVersion`] is `Copy`, and so are the
/// references to logs that it returns. A reading therefore lends the version only as long as it is borrowed itself:
/// `let version = sets.read(reads, seat).version();` does not compile if `version` is used later.
pub(crate) struct Reading<'g> {
    published: Published<'g>,
    section: Section<'g>,
}

impl Reading<'_> {
    /// Returns the version, its number and its name.
    #[inline(always)]
    pub(crate) fn published(&self) -> Published<'_> {
        self.published
    }

    #[inline(always)]
    pub(crate) fn version(&self) -> SlotsVersion<'_> {
        self.published.version
    }

    #[inline(always)]
    pub(crate) fn number(&self) -> u64 {
        self.published.number
    }

    /// See [`Section::within`].
    #[inline(always)]
    pub(crate) fn within(&self) -> Within<'_> {
        self.section.within()
    }
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

    /// Returns the number of the published version.
    #[inline(always)]
    pub(crate) fn number(&self) -> u64 {
        // A fault's second load of the epoch stays after this load.
        self.word.0.load(order!(publish.number, Acquire)) >> 1
    }

    /// Returns the number, and whether readers of an older version may still exist.
    pub(crate) fn progress(&self) -> (u64, bool) {
        let word = self.word.0.load(order!(publish.progress, Acquire));
        (word >> 1, word & IN_PROGRESS != 0)
    }

    /// Reads the published version, in a section of its own on a seat that this thread holds and is in no section on.
    #[inline(always)]
    pub(crate) fn read<'g>(&'g self, reads: &ReadSide, seat: &'g Seat) -> Reading<'g> {
        let section = reads.enter(seat);
        // SAFETY: the reading lends the version only as long as it holds the section.
        Reading { published: unsafe { self.load() }, section }
    }

    /// Reads the published version in an open section of this VM's read side.
    #[inline(always)]
    pub(crate) fn read_within<'w>(&'w self, _: Within<'w>) -> Published<'w> {
        // SAFETY: the section stays open for all of `'w`.
        unsafe { self.load() }
    }

    /// # Safety
    /// The caller is in a section of the VM's read side for all of `'g`.
    #[inline(always)]
    unsafe fn load<'g>(&self) -> Published<'g> {
        // Pairs with the Release in `publish`: the cell and the nodes are written before a reader sees them. Also keeps
        // a fault's second load of the epoch after this load.
        let number = self.word.0.load(order!(publish.read, Acquire)) >> 1;
        // SAFETY: the cell was written before it was published, and is written again only after a grace period since it
        // was replaced. The caller's section began before that. The same holds for its nodes.
        unsafe {
            let cell = &*self.cells[(number % CELLS) as usize].get();
            read_whole(cell);
            let (set, name) = cell;
            Published { version: set.read(), number, name: *name }
        }
    }

    /// Whether nothing has been published since invalidation `version`. A statement about the slots as of that number
    /// is then still true. The caller reads the epoch first.
    #[inline]
    pub(crate) fn unchanged_since(&self, version: Invalidated) -> bool {
        version >= self.published_under()
    }

    /// The invalidation under which the slots were published, or are about to be. The caller reads the epoch first: the
    /// end of a transaction moves it, so a fault that begins after a transaction sees the transaction's number.
    pub(crate) fn published_under(&self) -> Invalidated {
        Invalidated(self.changed.load(Relaxed))
    }

    /// Publishes `set` under the next number, inside invalidation `under`. `in_progress` stays set until
    /// [`Writer::wait`].
    ///
    /// # Safety
    /// The caller holds `writer`, which has a free cell ([`Writer::make_room`]).
    pub(crate) unsafe fn publish(&self, set: Set, under: Invalidated, in_progress: bool) {
        // Before the version: readers then refuse an answer slightly too early, and look the slot up.
        self.changed.store(under.0, Relaxed);
        let number = self.number() + 1;
        // SAFETY: the cell's version has no readers, and there is one writer.
        let cell = unsafe { &mut *self.cells[(number % CELLS) as usize].get() };
        *cell = (set, Name::next());
        written_whole(cell);
        let word = number << 1 | u64::from(in_progress);
        self.word.0.store(word, order!(publish.store, Release));
    }
}

impl Writer {
    /// Keeps the leftovers of the replaced version until a grace period.
    pub(crate) fn keep(&mut self, leftovers: Leftovers) {
        self.leftovers.push(leftovers);
    }

    /// Ensures a free cell for the next publication. If there is none, waits for readers.
    pub(crate) fn make_room(&mut self, sets: &SlotSets, reads: &ReadSide) {
        if sets.number() + 1 - self.oldest >= CELLS {
            self.wait(sets, reads);
        }
    }

    /// Waits until no reader has an older version than the published one, and reclaims the leftovers. The thread must
    /// be in no section.
    pub(crate) fn wait(&mut self, sets: &SlotSets, reads: &ReadSide) {
        reads.synchronize();
        let number = sets.number();
        self.oldest = number;
        for leftovers in self.leftovers.drain(..) {
            // SAFETY: left over before the grace period that just ended.
            unsafe { self.map.reclaim(leftovers) };
        }
        // Readers now take the version from this store.
        sets.word.0.store(number << 1, order!(publish.store, Release));
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        for leftovers in self.leftovers.drain(..) {
            // SAFETY: the VM is dropped, so there is no reader.
            unsafe { self.map.reclaim(leftovers) };
        }
    }
}

#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests;
