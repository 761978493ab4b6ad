//! The ring of one vCPU: the pages that its stores made writable, in the order in which it did.
//!
//! ```text
//!            tail                 head            soft limit        size
//!  …  taken   │  to be told        │   room         │  reserve       │
//!             └─ collectors,       └─ the vCPU      └─ from here on the vCPU stores nothing
//!                one at a time        alone
//! ```
//! A page is pushed **after** its leaf was given write permission, and the collector that takes the entry takes the permission
//! back afterwards. So a page is writable only while its entry is in the ring, or about to be, or in the hands of a
//! collector that has not come to the leaf yet: no store goes untold.
//!
//! Nothing is overwritten. Past the soft limit the vCPU's next store waits for a collector
//! ([`Done::RingFull`](crate::Done::RingFull)); it is the only vCPU that stops. A fault pushes one page at most, so
//! the reserve is never used up; should it be, [`Ring::push`] refuses, and the page goes to its slot's bitmap.
//!
//! **In two steps.** A collector may also be told of entries and leave them where they are (`collect`): the vCPU gets no room by
//! that, and the pages stay writable. What was told goes in a second step (`take_told`), all of it or the first of it, when its pages
//! are armed. What is pushed between the two waits for the next collector. An entry that concerns no memslot any more is struck out when
//! it would be told: the second step counts it for nothing.
//!
//! What became of the slot meanwhile is found out when the entry is taken ([`Pushed`]).

use super::{DirtyError, RingSize};
use crate::slots::bitmap::{Bitmap, WORD};
use crate::slots::{SlotId, SpaceId};
use crate::sync::once::Once;
use crate::sync::prim::{Acquire, AtomicU64, Mutex, Padded, RawMutex, Relaxed, Release};
use crate::table::pool::NoMemory;
use alloc::boxed::Box;
use alloc::vec::Vec;
use lock_api::MutexGuard;

/// See the module's header.
pub(crate) struct Ring {
    /// How many pages were ever pushed. Stored by the vCPU alone.
    head: Padded<AtomicU64>,
    /// How many were ever taken. Stored under `taking` alone.
    tail: Padded<AtomicU64>,
    /// How many were ever told: not fewer than were taken.
    taking: Mutex<u64>,
    entries: Box<[Entry]>,
    /// From this many on the vCPU has to stop.
    soft_limit: u64,
}

/// See [`Pushed::to_words`].
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
    /// An empty one.
    pub(crate) fn new(size: RingSize) -> Result<Self, NoMemory> {
        Self::with(size.entries() as usize, u64::from(size.soft_limit()))
    }

    fn with(size: usize, soft_limit: u64) -> Result<Self, NoMemory> {
        let mut entries = Vec::new();
        if injected!(Alloc) || entries.try_reserve_exact(size).is_err() {
            return Err(NoMemory);
        }
        entries.resize_with(size, Entry::default);
        let entries = entries.into_boxed_slice();
        Ok(Self {
            head: Padded::default(),
            tail: Padded::default(),
            taking: Mutex::new(0),
            entries,
            soft_limit,
        })
    }

    /// Whether its vCPU has to stop storing until a collector has taken something. Asked by the vCPU.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting() >= self.soft_limit
    }

    /// How many pages are to be told. By the vCPU, or under `taking`.
    fn waiting(&self) -> u64 {
        // The vCPU's own, or about to be loaded again by one who takes: late news is good enough for both.
        let head = self.head.load(Relaxed);
        // ORDER(ring-room): Acquire pairs with the Release in `Taking::drop`: entries are written again only after
        // they were read.
        head - self.tail.load(Acquire)
    }

    /// Tells of a page whose leaf has been given write permission, by the thread that has the vCPU. False, and
    /// nothing is done, where there is no room at all.
    #[must_use = "a page that was not pushed has to be told in another way"]
    pub(crate) fn push(&self, pushed: Pushed) -> bool {
        if self.waiting() >= self.entries.len() as u64 {
            return false;
        }
        let head = self.head.load(Relaxed);
        self.entry(head).put(pushed);
        // ORDER(ring): Release: the entry before it can be found, and the permission before it can be taken back.
        // Pairs with `take`.
        self.head.store(head + 1, unless_seeded!(RingRelaxed, Release));
        true
    }

    /// What was pushed so far, in order. Collectors take turns; the vCPU is not held up. What is not taken stays.
    pub(crate) fn take(&self) -> Taking<'_> {
        let told = self.taking.lock();
        Taking { ring: self, next: self.tail.load(Relaxed), until: self.head(), tells: false, told }
    }

    /// What was pushed so far and was not told, in order. It stays.
    pub(super) fn collect(&self) -> Taking<'_> {
        let told = self.taking.lock();
        Taking { ring: self, next: *told, until: self.head(), tells: true, told }
    }

    /// What was told and not taken, in order: so many at most, and what is struck out among and right after them.
    pub(super) fn take_told(&self, most: u64) -> Taking<'_> {
        let told = self.taking.lock();
        let next = self.tail.load(Relaxed);
        let end = if seeded!(ResetUncollected) { self.head() } else { *told };
        let is_told = |at: &u64| self.entry(*at).get() != Pushed::STRUCK_OUT;
        let until =
            (next..end).filter(is_told).nth(usize::try_from(most).unwrap_or(usize::MAX)).unwrap_or(end);
        Taking { ring: self, next, until, tells: false, told }
    }

    fn entry(&self, at: u64) -> &Entry {
        &self.entries[(at % self.entries.len() as u64) as usize]
    }

    fn head(&self) -> u64 {
        // ORDER(ring): Acquire; see `push`.
        self.head.load(Acquire)
    }

    /// How many were told and not taken.
    pub(super) fn waits_for_reset(&self) -> u64 {
        let told = self.taking.lock();
        *told - self.tail.load(Relaxed)
    }

    /// Entries that it has room for.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// What a collector takes of a ring, or is told, while it is its turn.
pub(crate) struct Taking<'r> {
    ring: &'r Ring,
    next: u64,
    until: u64,
    /// Whether what it has come to stays.
    tells: bool,
    told: MutexGuard<'r, RawMutex, u64>,
}

impl Taking<'_> {
    /// Strikes out the entry that it has just come to, which stays without being told.
    pub(super) fn strike_out(&self) {
        self.ring.entry(self.next - 1).put(Pushed::STRUCK_OUT);
    }

    /// The same as a list. Where there is no memory for it, nothing is taken.
    pub(super) fn list(self) -> Result<Vec<Pushed>, DirtyError> {
        let mut pages = Vec::new();
        if injected!(Alloc) || pages.try_reserve_exact(self.len()).is_err() {
            return Err(DirtyError::NoMemory);
        }
        pages.extend(self);
        Ok(pages)
    }
}

impl Iterator for Taking<'_> {
    type Item = Pushed;

    fn next(&mut self) -> Option<Pushed> {
        if self.next == self.until {
            return None;
        }
        let pushed = self.ring.entry(self.next).get();
        self.next += 1;
        Some(pushed)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.until - self.next) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Taking<'_> {}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        *self.told = self.next.max(*self.told);
        if !self.tells {
            // ORDER(ring-room): Release: what was taken has been read; pairs with `Ring::waiting`.
            self.ring.tail.store(self.next, unless_seeded!(RoomRelaxed, Release));
        }
    }
}

/// The rings of a VM: none, or one for each vCPU from the moment when they are made.
#[derive(Default)]
pub(crate) struct Rings(Once<Box<[Ring]>>);

impl Rings {
    /// All of them, by number.
    pub(crate) fn all(&self) -> &[Ring] {
        self.0.get().map_or(&[], |rings| rings)
    }

    /// One of this size for each of so many vCPUs, where there is none yet.
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
/// The number orders them slot by slot, and by pages in each; a shift says whether two are of one log, or of one word.
/// It names the log, not only the slot: what was left over from a slot which is gone, or whose log was switched off since,
/// says nothing about the slot that has its id now. It names no frame, so a slot may move meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Pushed(u128);

/// Bits of a page's number: no slot has as many pages.
const PAGE: u32 = 48;
/// Bits of a serial.
const SERIAL: u32 = 40;

impl Pushed {
    /// Of an address space that no VM has.
    const STRUCK_OUT: Self = Self(u128::MAX);

    /// Page `page` of the slot that `log` belongs to.
    pub(crate) fn new(space: SpaceId, slot: SlotId, log: &Bitmap, page: u64) -> Self {
        debug_assert!(page >> PAGE == 0);
        let name = u128::from(space.0) << 72 | u128::from(slot.0) << SERIAL | u128::from(serial(log));
        Self(name << PAGE | u128::from(page))
    }

    /// As two words, the upper first.
    fn to_words(self) -> [u64; 2] {
        [(self.0 >> 64) as u64, self.0 as u64]
    }

    /// From such.
    fn from_words([upper, lower]: [u64; 2]) -> Self {
        Self(u128::from(upper) << 64 | u128::from(lower))
    }

    /// The address space of its slot.
    pub(crate) fn space(self) -> SpaceId {
        SpaceId((self.0 >> 120) as u8)
    }

    pub(crate) fn slot(self) -> SlotId {
        SlotId((self.0 >> (PAGE + SERIAL)) as u32)
    }

    /// Counted from the slot's first.
    pub(crate) fn page(self) -> u64 {
        self.0 as u64 & ((1 << PAGE) - 1)
    }

    /// Whether both are of the same log.
    pub(crate) fn shares_log(&self, other: &Self) -> bool {
        (self.0 ^ other.0) >> PAGE == 0
    }

    /// Whether both are of the same 64 pages of it.
    fn shares_word(&self, other: &Self) -> bool {
        self.0 / u128::from(WORD) == other.0 / u128::from(WORD)
    }

    /// Whether it is of `log`, which its slot has now. 2^40 logs are one a millisecond for thirty years; and should one be
    /// taken for another, it is told of a page too many.
    pub(crate) fn is_of(self, log: &Bitmap) -> bool {
        (self.0 >> PAGE) as u64 & ((1 << SERIAL) - 1) == serial(log) && self.page() < log.pages()
    }
}

/// As much of a log's serial as there is room for.
fn serial(log: &Bitmap) -> u64 {
    log.serial() & ((1 << SERIAL) - 1)
}

/// Merges sorted pages of one log into words: the number of each that has any, and its bits.
///
/// Sorted, not in the order of the stores as KVM has it: a page that was pushed twice is one bit wherever it stood, what
/// is told comes in the order in which bitmaps tell it, and neighbours are armed together.
pub(crate) fn merge(pages: &[Pushed]) -> impl Iterator<Item = (u64, u64)> {
    pages.chunk_by(Pushed::shares_word).map(|pages| {
        (pages[0].page() / WORD, pages.iter().fold(0, |bits, pushed| bits | 1 << (pushed.page() % WORD)))
    })
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests;
