//! The ring of one vCPU: the pages that its stores made writable, in the order in which it did.
//!
//! ```text
//!            tail                 head            soft limit        size
//!  …  taken   │  to be told        │   room         │  reserve       │
//!             └─ collectors,       └─ the vCPU      └─ from here on the vCPU stores nothing
//!                one at a time        alone
//! ```
//! A page is pushed **after** its leaf was given write permission, and whoever takes the entry takes the permission
//! back afterwards. So a page is writable only while its entry is in the ring, or about to be, or in the hands of a
//! collector that has not come to the leaf yet: no store goes untold.
//!
//! Nothing is overwritten. Past the soft limit the vCPU's next store waits for a collector
//! ([`Done::RingFull`](crate::Done::RingFull)); it is the only vCPU that stops. A fault pushes one page at most, so
//! the reserve is never used up; should it be, [`Ring::push`] refuses, and the page goes to its slot's bitmap.
//!
//! An entry names the log that it belongs to, not only the slot: one that was left over from a slot which is gone, or
//! whose log was switched off since, says nothing about the slot that has its id now. It names no frame, so a slot may
//! move meanwhile.

use super::bitmap::{Bitmap, WORD};
use super::{DirtyError, RingSize};
use crate::slots::{SlotId, SpaceId};
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
    taking: Mutex<()>,
    entries: Box<[Entry]>,
    /// From this many on the vCPU has to stop.
    soft_limit: u64,
}

/// One page that a vCPU has written, or may write from now on. Ordered slot by slot, and by pages in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Written {
    pub(crate) space: SpaceId,
    pub(crate) slot: SlotId,
    /// Of its log, modulo 2^40.
    pub(crate) serial: u64,
    /// Counted from the slot's first.
    pub(crate) page: u64,
}

impl Written {
    /// Page `page` of the slot that `log` belongs to.
    pub(crate) fn new(space: SpaceId, slot: SlotId, log: &Bitmap, page: u64) -> Self {
        Self { space, slot, serial: log.serial() & ((1 << SERIAL) - 1), page }
    }

    /// Whether both are of the same log.
    pub(crate) fn shares_log(&self, other: &Self) -> bool {
        (self.space, self.slot, self.serial) == (other.space, other.slot, other.serial)
    }

    /// Whether it belongs to `log`, which its slot has now. 2^40 logs are one a millisecond for thirty years; and should
    /// one be taken for another, it is told of a page too many.
    pub(crate) fn is_of(&self, log: &Bitmap) -> bool {
        (self.serial ^ log.serial()) << (64 - SERIAL) == 0
    }
}

/// A page in 16 bytes.
///
/// ```text
/// place   slot 31..0 | space 39..32 | serial 23..0 at 63..40
/// page    page 47..0 | serial 39..24 at 63..48
/// ```
#[derive(Default)]
struct Entry {
    place: AtomicU64,
    page: AtomicU64,
}

/// Bits of a page's number: no slot has as many pages.
const PAGE: u32 = 48;
/// Bits of a serial, and how many of them are beside the slot.
const SERIAL: u32 = 40;
const SERIAL_LOW: u32 = 24;

impl Entry {
    fn put(&self, written: Written) {
        let Written { space, slot, serial, page } = written;
        debug_assert!(page >> PAGE == 0);
        self.place.store(u64::from(slot.0) | u64::from(space.0) << 32 | serial << (64 - SERIAL_LOW), Relaxed);
        self.page.store(page | serial >> SERIAL_LOW << PAGE, Relaxed);
    }

    fn get(&self) -> Written {
        let (place, page) = (self.place.load(Relaxed), self.page.load(Relaxed));
        Written {
            space: SpaceId((place >> 32) as u8),
            slot: SlotId(place as u32),
            serial: place >> (64 - SERIAL_LOW) | page >> PAGE << SERIAL_LOW,
            page: page & ((1 << PAGE) - 1),
        }
    }
}

impl Ring {
    /// An empty one.
    pub(crate) fn new(size: RingSize) -> Result<Self, NoMemory> {
        Self::with(size.entries() as usize, u64::from(size.soft_limit()))
    }

    fn with(size: usize, soft_limit: u64) -> Result<Self, NoMemory> {
        let mut entries = Vec::new();
        entries.try_reserve_exact(size).map_err(|_| NoMemory)?;
        entries.resize_with(size, Entry::default);
        let entries = entries.into_boxed_slice();
        Ok(Self {
            head: Padded::default(),
            tail: Padded::default(),
            taking: Mutex::new(()),
            entries,
            soft_limit,
        })
    }

    /// Whether its vCPU has to stop storing until somebody has taken something. Asked by the vCPU.
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
    pub(crate) fn push(&self, written: Written) -> bool {
        let size = self.entries.len() as u64;
        if self.waiting() >= size {
            return false;
        }
        let head = self.head.load(Relaxed);
        self.entries[(head % size) as usize].put(written);
        // ORDER(ring): Release: the entry before it can be found, and the permission before it can be taken back.
        // Pairs with `take`.
        self.head.store(head + 1, Release);
        true
    }

    /// The same as a list. Where there is no memory for it, nothing is taken.
    pub(crate) fn take_all(&self) -> Result<Vec<Written>, DirtyError> {
        let (taking, mut written) = (self.take(), Vec::new());
        written.try_reserve_exact(taking.len()).map_err(|_| DirtyError::NoMemory)?;
        written.extend(taking);
        Ok(written)
    }

    /// What was pushed so far, in order. Collectors take turns; the vCPU is not held up. What is not taken stays.
    pub(crate) fn take(&self) -> Taking<'_> {
        let turn = self.taking.lock();
        let from = self.tail.load(Relaxed);
        // ORDER(ring): Acquire; see `push`.
        let until = self.head.load(Acquire);
        Taking { ring: self, next: from, until, _turn: turn }
    }
}

impl core::fmt::Debug for Ring {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Ring")
            .field("size", &self.entries.len())
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}

/// What a collector takes of a ring, while it is its turn.
pub(crate) struct Taking<'r> {
    ring: &'r Ring,
    next: u64,
    until: u64,
    _turn: MutexGuard<'r, RawMutex, ()>,
}

impl Iterator for Taking<'_> {
    type Item = Written;

    fn next(&mut self) -> Option<Written> {
        if self.next == self.until {
            return None;
        }
        let entries = &self.ring.entries;
        let written = entries[(self.next % entries.len() as u64) as usize].get();
        self.next += 1;
        Some(written)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.until - self.next) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Taking<'_> {}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        // ORDER(ring-room): Release: what was taken has been read; pairs with `Ring::waiting`.
        self.ring.tail.store(self.next, Release);
    }
}

/// Merges sorted pages of one log into words: the number of each that has any, and its bits.
///
/// Sorted, not in the order of the stores as KVM has it: a page that was pushed twice is one bit wherever it stood, what
/// is told comes in the order in which bitmaps tell it, and neighbours are armed together.
pub(crate) fn merge(pages: &[Written]) -> impl Iterator<Item = (u64, u64)> {
    let word = |written: &Written| written.page / WORD;
    let words = pages.chunk_by(move |a, b| word(a) == word(b));
    words.map(move |pages| {
        (word(&pages[0]), pages.iter().fold(0, |bits, written| bits | 1 << (written.page % WORD)))
    })
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::prim::AtomicBool;
    use alloc::vec;

    fn page(page: u64) -> Written {
        Written { space: SpaceId(0), slot: SlotId(3), serial: 1, page }
    }

    fn pages(ring: &Ring) -> Vec<u64> {
        ring.take().map(|written| written.page).collect()
    }

    #[test]
    fn an_entry_says_all_that_was_put_into_it() {
        let entry = Entry::default();
        let widest = Written {
            space: SpaceId(u8::MAX),
            slot: SlotId(u32::MAX),
            serial: (1 << 40) - 1,
            page: (1 << 48) - 1,
        };
        let nothing = Written { space: SpaceId(0), slot: SlotId(0), serial: 0, page: 0 };
        for written in [
            widest,
            nothing,
            page(1 << 47),
            Written { space: SpaceId(u8::MAX), ..nothing },
            Written { slot: SlotId(u32::MAX), ..nothing },
            Written { serial: (1 << 40) - 1, ..nothing },
            Written { serial: 0x12_3456_789a, ..nothing },
            Written { page: (1 << 48) - 1, ..nothing },
        ] {
            entry.put(written);
            assert_eq!(entry.get(), written);
        }
        assert_eq!(size_of::<Entry>(), 16);
    }

    #[test]
    fn pages_come_out_in_order_and_once_however_often_it_goes_round() {
        let ring = Ring::with(8, 6).unwrap();
        let mut next = 0;
        for lap in 1..40 {
            let many = lap % 7;
            for at in next..next + many {
                assert!(!ring.is_full());
                assert!(ring.push(page(at)));
            }
            assert_eq!(ring.is_full(), many == 6);
            assert_eq!(pages(&ring), (next..next + many).collect::<Vec<_>>());
            next += many;
        }
        assert_eq!(pages(&ring), []);
    }

    #[test]
    fn soft_full_it_still_takes_pages_and_full_it_refuses_them() {
        let ring = Ring::new(RingSize::new(4096).unwrap()).unwrap();
        for at in 0..256 {
            assert_eq!(ring.is_full(), at >= 256 - 64, "{at}");
            assert!(ring.push(page(at)));
        }
        assert!(!ring.push(page(256)), "nothing is overwritten");
        assert_eq!(pages(&ring), (0..256).collect::<Vec<_>>());
        assert!(!ring.is_full());
        assert!(ring.push(page(256)));
    }

    #[test]
    fn what_a_collector_leaves_is_still_there() {
        let ring = Ring::with(8, 6).unwrap();
        (0..6).for_each(|at| assert!(ring.push(page(at))));
        assert_eq!(ring.take().len(), 6, "looked at, and not taken");
        assert!(ring.is_full());
        assert_eq!(ring.take().next(), Some(page(0)));
        assert!(!ring.is_full());
        assert_eq!(pages(&ring), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn neighbours_become_one_word_whatever_came_between_them() {
        let other = Written { slot: SlotId(2), ..page(7) };
        let newer = Written { serial: 2, ..page(7) };
        let spaced = Written { space: SpaceId(1), ..page(7) };
        let mut written =
            [page(64), spaced, page(63), newer, page(7), other, page(64), page(0), page(127), page(640)];
        written.sort_unstable();
        let logs = written.chunk_by(Written::shares_log);
        let words: Vec<_> = logs.map(|pages| merge(pages).collect::<Vec<_>>()).collect();
        let seven = vec![(0, 1 << 7)];
        let all = vec![(0, 1 << 63 | 1 << 7 | 1), (1, 1 << 63 | 1), (10, 1)];
        assert_eq!(words, [seven.clone(), all, seven.clone(), seven]);
    }

    #[test]
    fn a_page_is_of_the_log_that_it_was_pushed_for() {
        let [log, next] = [7, 8].map(|serial| Bitmap::new(100, serial, false).unwrap());
        let written = Written::new(SpaceId(0), SlotId(3), &log, 5);
        assert!(written.is_of(&log) && !written.is_of(&next));
        let late = Bitmap::new(100, (1 << SERIAL) + 7, false).unwrap();
        let (entry, written) = (Entry::default(), Written::new(SpaceId(0), SlotId(3), &late, 5));
        entry.put(written);
        assert!(entry.get() == written && written.is_of(&late), "however many there were");
    }

    #[test]
    fn nothing_is_lost_between_a_vcpu_and_collectors_that_take_turns() {
        const PAGES: u64 = if cfg!(miri) { 500 } else { 200_000 };
        let (ring, over) = (Ring::with(128, 64).unwrap(), AtomicBool::new(false));
        let collect = |over: &dyn Fn() -> bool| {
            let mut taken = vec![];
            while !over() {
                taken.extend(pages(&ring));
                std::thread::yield_now();
            }
            taken
        };
        let mut taken = std::thread::scope(|scope| {
            let vcpu = scope.spawn(|| {
                for at in 0..PAGES {
                    while ring.is_full() {
                        std::thread::yield_now();
                    }
                    assert!(ring.push(page(at)));
                }
            });
            let other = scope.spawn(|| collect(&|| over.load(Relaxed)));
            let mut taken = collect(&|| vcpu.is_finished());
            over.store(true, Relaxed);
            taken.extend(other.join().unwrap());
            taken
        });
        taken.extend(pages(&ring));
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..PAGES));
    }
}
