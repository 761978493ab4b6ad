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
//! What became of the slot meanwhile is found out when the entry is taken ([`Pushed`]).

use super::pushed::Pushed;
use super::{DirtyError, RingSize};
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
    pub(crate) fn push(&self, pushed: Pushed) -> bool {
        let size = self.entries.len() as u64;
        if self.waiting() >= size {
            return false;
        }
        let head = self.head.load(Relaxed);
        self.entries[(head % size) as usize].put(pushed);
        // ORDER(ring): Release: the entry before it can be found, and the permission before it can be taken back.
        // Pairs with `take`.
        self.head.store(head + 1, unless_seeded!(RingRelaxed, Release));
        true
    }

    /// The same as a list. Where there is no memory for it, nothing is taken.
    pub(crate) fn take_all(&self) -> Result<Vec<Pushed>, DirtyError> {
        let (taking, mut pages) = (self.take(), Vec::new());
        if injected!(Alloc) || pages.try_reserve_exact(taking.len()).is_err() {
            return Err(DirtyError::NoMemory);
        }
        pages.extend(taking);
        Ok(pages)
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
        // How many wait is not for whoever looks on: two loads of a ring in use need not agree.
        f.debug_struct("Ring").field("size", &self.entries.len()).finish_non_exhaustive()
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
    type Item = Pushed;

    fn next(&mut self) -> Option<Pushed> {
        if self.next == self.until {
            return None;
        }
        let entries = &self.ring.entries;
        let pushed = entries[(self.next % entries.len() as u64) as usize].get();
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
        // ORDER(ring-room): Release: what was taken has been read; pairs with `Ring::waiting`.
        self.ring.tail.store(self.next, unless_seeded!(RoomRelaxed, Release));
    }
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::prim::AtomicBool;
    use alloc::vec;

    fn page(page: u64) -> Pushed {
        Pushed::from_words([0, page])
    }

    fn pages(ring: &Ring) -> Vec<u64> {
        ring.take().map(Pushed::page).collect()
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
