//! The ring of one vCPU: the pages that its stores made writable, in order.
//!
//! ```text
//!            tail                 head            soft limit        size
//!  …  taken   │  to be collected   │   room         │  reserve       │
//!             └─ collectors,       └─ the vCPU      └─ from here on the vCPU stores nothing
//!                one at a time        alone
//! ```
//! The vCPU pushes a page **after** its leaf got write permission. The collector that takes the entry withdraws the
//! permission afterwards. A page is therefore writable only while its entry is in the ring, is about to be, or is held
//! by a collector that has not reached the leaf yet. No store is missed.
//!
//! No entry is overwritten. Above the soft limit the vCPU's next store waits for a collector
//! ([`Leave::RingFull`](crate::Leave::RingFull)); other vCPUs continue. A fault pushes at most one page, so the reserve
//! never runs out. If it did, [`Ring::push`] would refuse, and the page would be marked in its slot's bitmap.
//!
//! **Two steps.** A collector may also report entries and leave them in place (`collect`). The vCPU then gets no room,
//! and the pages stay writable. The second step (`take_told`) removes all or the first of the reported entries, and
//! arms their pages. Entries that are pushed between the two steps wait for the next collector. If an entry's log has
//! ended, `collect` strikes it out, and the second step does not count it.
//!
//! The collector that takes an entry checks whether its slot and log still exist ([`Pushed`]).

use super::RingSize;
use crate::fallible;
use crate::slots::bitmap::{Bitmap, WORD};
use crate::slots::takings::Takings;
use crate::sync::once::Once;
use crate::sync::prim::{AtomicU64, Mutex, Padded, RawMutex, Relaxed};
use crate::{NoMemory, SlotId, SpaceId};
use alloc::boxed::Box;
use alloc::vec::Vec;
use lock_api::MutexGuard;

/// The ring of one vCPU. See the module's header.
pub(crate) struct Ring {
    /// Number of pages ever pushed. Stored only by the vCPU.
    head: Padded<AtomicU64>,
    /// Number of pages ever taken. Stored only under `taking`.
    tail: Padded<AtomicU64>,
    /// Number of pages ever reported: at least the number taken.
    taking: Mutex<u64>,
    entries: Box<[Entry]>,
    /// Number of waiting entries from which on the vCPU has to stop.
    soft_limit: u64,
}

/// One page; see [`Pushed::to_words`].
#[derive(Default)]
struct Entry([AtomicU64; 2]);

impl Entry {
    fn put(&self, pushed: Pushed) {
        for (cell, word) in self.0.iter().zip(pushed.to_words()) {
            cell.store(word, Relaxed);
        }
    }

    fn get(&self) -> Pushed {
        Pushed::from_words(self.0.each_ref().map(|cell| cell.load(Relaxed)))
    }
}

impl Ring {
    /// An empty ring.
    pub(crate) fn new(size: RingSize) -> Result<Self, NoMemory> {
        Self::with(size.entries() as usize, u64::from(size.soft_limit()))
    }

    fn with(size: usize, soft_limit: u64) -> Result<Self, NoMemory> {
        let entries = fallible::boxed(size, Entry::default)?;
        Ok(Self {
            head: Padded::default(),
            tail: Padded::default(),
            taking: Mutex::new(0),
            entries,
            soft_limit,
        })
    }

    /// Whether its vCPU must not store until a collector has taken entries. Called by the vCPU.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting() >= self.soft_limit
    }

    /// Returns the number of entries that are not taken. Called by the vCPU, or under `taking`.
    fn waiting(&self) -> u64 {
        // The vCPU's own word, or one that a collector loads again: a stale value is harmless.
        let head = self.head.load(Relaxed);
        // Pairs with the Release in `Taking::drop`: entries are overwritten only after they were read.
        head - self.tail.load(order!(ring_room.waiting, Acquire))
    }

    /// Pushes a page whose leaf got write permission. Called by the thread that has the vCPU. Returns false, and does
    /// nothing, if there is no room at all.
    #[must_use = "a page that was not pushed has to be told in another way"]
    pub(crate) fn push(&self, pushed: Pushed) -> bool {
        if self.waiting() >= self.entries.len() as u64 {
            return false;
        }
        let head = self.head.load(Relaxed);
        self.entry(head).put(pushed);
        // The entry, and the permission, before a collector finds it. Pairs with `head()`.
        self.head.store(head + 1, order!(ring.push, Release));
        true
    }

    /// Takes the entries so far, in order. Collectors take turns; the vCPU does not wait. Entries not iterated stay.
    pub(crate) fn take(&self) -> Taking<'_> {
        let told = self.taking.lock();
        Taking { ring: self, next: self.tail.load(Relaxed), until: self.head(), tells: false, told }
    }

    /// Returns the entries so far that were not reported, in order. They stay in the ring.
    pub(crate) fn collect(&self) -> Taking<'_> {
        let told = self.taking.lock();
        Taking { ring: self, next: *told, until: self.head(), tells: true, told }
    }

    /// Takes reported entries, in order: at most `most`, plus the struck-out ones among and right after them.
    pub(crate) fn take_told(&self, most: u64) -> Taking<'_> {
        let told = self.taking.lock();
        let next = self.tail.load(Relaxed);
        let end = *told;
        let is_told = |at: &u64| self.entry(*at).get() != Pushed::STRUCK_OUT;
        let until =
            (next..end).filter(is_told).nth(usize::try_from(most).unwrap_or(usize::MAX)).unwrap_or(end);
        Taking { ring: self, next, until, tells: false, told }
    }

    fn entry(&self, at: u64) -> &Entry {
        &self.entries[(at % self.entries.len() as u64) as usize]
    }

    fn head(&self) -> u64 {
        self.head.load(order!(ring.take, Acquire))
    }

    /// Returns the number of entries that were reported and not taken.
    pub(crate) fn waits_for_reset(&self) -> u64 {
        let told = self.taking.lock();
        *told - self.tail.load(Relaxed)
    }

    /// Number of entries that it has room for.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// A collector's turn on a ring: an iterator over entries that are taken or reported.
pub(crate) struct Taking<'r> {
    ring: &'r Ring,
    next: u64,
    until: u64,
    /// Whether iterated entries stay in the ring.
    tells: bool,
    told: MutexGuard<'r, RawMutex, u64>,
}

impl Taking<'_> {
    /// The next entry, which is not counted as taken or told yet.
    pub(crate) fn peek(&self) -> Option<Pushed> {
        (self.next != self.until).then(|| self.ring.entry(self.next).get())
    }

    /// Strikes out the entry that was iterated last.
    pub(crate) fn strike_out(&self) {
        self.ring.entry(self.next - 1).put(Pushed::STRUCK_OUT);
    }

    /// Returns the entries as a list. Without memory, takes nothing.
    pub(crate) fn list(self) -> Result<Vec<Pushed>, NoMemory> {
        let mut pages = Vec::new();
        fallible::reserve_exact(&mut pages, (self.until - self.next) as usize)?;
        pages.extend(self);
        Ok(pages)
    }
}

impl Iterator for Taking<'_> {
    type Item = Pushed;

    fn next(&mut self) -> Option<Pushed> {
        let pushed = self.peek()?;
        self.next += 1;
        Some(pushed)
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        *self.told = self.next.max(*self.told);
        if !self.tells {
            // The taken entries have been read; pairs with `Ring::waiting`.
            self.ring.tail.store(self.next, order!(ring_room.taken, Release));
        }
    }
}

/// The rings of a VM: none, or one for each vCPU once they are made.
#[derive(Default)]
pub(crate) struct Rings(Once<Box<[Ring]>>, Takings);

impl Rings {
    /// How often pages were taken from rings, other than into the bitmaps.
    pub(crate) fn takings(&self) -> &Takings {
        &self.1
    }

    /// Returns all rings, by vCPU number.
    pub(crate) fn all(&self) -> &[Ring] {
        self.0.get().map_or(&[], |rings| rings)
    }

    /// Makes a ring of `size` for each of `vcpus` vCPUs, if there are no rings yet.
    pub(crate) fn make(&self, size: RingSize, vcpus: u32) -> Result<(), NoMemory> {
        self.0.set((0..vcpus).map(|_| Ring::new(size)).collect::<Result<_, _>>()?);
        Ok(())
    }
}

/// One page that a vCPU has written, or may write from now on, in 16 bytes.
///
/// ```text
/// 127 .. 120   119 .. 88   87 .. 48             47 .. 0
/// space        slot        serial of its log    page
/// ```
/// The number sorts pages by slot, then by page; a shift tells whether two are of one log, or of one word. It names the
/// log, not only the slot: an entry of a deleted slot, or of a log that has ended, does not match the slot that has the
/// id now. It names no frame, so a slot may move meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Pushed(u128);

/// Bits of a page number: no slot has more pages.
const PAGE: u32 = 48;
/// Bits of a serial.
const SERIAL: u32 = 40;

impl Pushed {
    /// An entry that was struck out: no VM has this address space.
    const STRUCK_OUT: Self = Self(u128::MAX);

    /// Page `page` of the slot that `log` belongs to.
    pub(crate) fn new(space: SpaceId, slot: SlotId, log: &Bitmap, page: u64) -> Self {
        debug_assert!(page >> PAGE == 0);
        let name = u128::from(space.0) << 72 | u128::from(slot.0) << SERIAL | u128::from(serial(log));
        Self(name << PAGE | u128::from(page))
    }

    /// Returns it as two words, the upper first.
    fn to_words(self) -> [u64; 2] {
        [(self.0 >> 64) as u64, self.0 as u64]
    }

    /// Reverses [`to_words`](Self::to_words).
    fn from_words([upper, lower]: [u64; 2]) -> Self {
        Self(u128::from(upper) << 64 | u128::from(lower))
    }

    /// Returns the address space of its slot.
    pub(crate) fn space(self) -> SpaceId {
        SpaceId((self.0 >> 120) as u8)
    }

    pub(crate) fn slot(self) -> SlotId {
        SlotId((self.0 >> (PAGE + SERIAL)) as u32)
    }

    /// Returns the page number in the slot.
    pub(crate) fn page(self) -> u64 {
        self.0 as u64 & ((1 << PAGE) - 1)
    }

    /// Whether both pages are of the same log.
    pub(crate) fn shares_log(&self, other: &Self) -> bool {
        (self.0 ^ other.0) >> PAGE == 0
    }

    /// Whether both pages are in the same 64 pages of a log.
    fn shares_word(&self, other: &Self) -> bool {
        self.0 / u128::from(WORD) == other.0 / u128::from(WORD)
    }

    /// Whether it is of `log`, the present log of its slot. Serials repeat after 2^40 logs: at one a millisecond,
    /// thirty years. A wrong match only reports one page too many.
    pub(crate) fn is_of(self, log: &Bitmap) -> bool {
        (self.0 >> PAGE) as u64 & ((1 << SERIAL) - 1) == serial(log) && self.page() < log.pages()
    }
}

/// The low bits of a log's serial.
fn serial(log: &Bitmap) -> u64 {
    log.serial() & ((1 << SERIAL) - 1)
}

/// Merges sorted pages of one log into words: each non-empty word's number and bits.
///
/// Sorted, unlike KVM, which keeps the order of stores: a page that was pushed twice is one bit, the order is that of
/// bitmaps, and neighbours are armed together.
pub(crate) fn merge(pages: &[Pushed]) -> impl Iterator<Item = (u64, u64)> {
    pages.chunk_by(Pushed::shares_word).map(|pages| {
        (pages[0].page() / WORD, pages.iter().fold(0, |bits, pushed| bits | 1 << (pushed.page() % WORD)))
    })
}

#[cfg(all(test, feature = "std", not(shuttle)))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests;
