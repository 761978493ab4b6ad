//! The primary MMU: 24 regions of 2 MiB, more than a narrow invalidation has. Each is one huge page or 512 small ones,
//! present or not, writable or not.
//!
//! It uses a frame number once: a vCPU that shows an old one uses a page that was taken back. A look-up reads a
//! region's `huge` first; while that is set, the words of the small pages are ignored. One thread at a time changes a
//! region. It announces the change first, and makes it when the debt is settled. For a sixth of the regions the host
//! sleeps before each answer, and other threads may run between the look and the answer. Two changes need no
//! announcement, since they take nothing: small pages that lie as a huge one does become one, or a huge page becomes
//! small ones, in place.

use crate::VCPUS;
use crate::arena::Arena;
use crate::chaos::{Chaos, elsewhere, is_elsewhere};
use crate::hazards::Hazards;
use crate::nested::L1;
use crate::random::Random;
use crate::vm_under_test::Mistake;
use slat::table::Word;
use slat::table::{Own, TableMemory, TablesOf};
use slat::*;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pages in a region.
pub const REGION: u64 = Level::M2.pages();
pub const REGIONS: u64 = 24;
pub const PAGES: u64 = REGIONS * REGION;
/// The first region's address.
pub const RAM: Hva = Hva(0x40_0000_0000);

/// Frames of small pages, and of huge ones.
const SMALL: u64 = 1 << 30;
const HUGE: u64 = 1 << 34;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;

/// One entry: `frame << 2 | writable << 1 | present`; zero if no page is there.
#[derive(Default)]
struct Page(AtomicU64);

impl Page {
    fn get(&self) -> u64 {
        self.0.load(Acquire)
    }

    fn set(&self, word: u64) {
        self.0.store(word, Release);
    }
}

struct Region {
    /// Held by the thread that changes it.
    lock: Mutex<()>,
    huge: Page,
    small: Vec<Page>,
}

/// The primary MMU. See the module's header.
pub struct Primary {
    regions: Vec<Region>,
    arena: Arena,
    small: AtomicU64,
    huge: AtomicU64,
    mistake: Mistake,
    /// A table of L1's, in its first pages.
    l1: L1,
    /// How the callbacks misbehave.
    pub hazards: Hazards,
    pub chaos: Chaos,
}

/// The change of a range of pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The pages move to other frames.
    Move,
    /// The pages lose write permission.
    Protect,
    /// The pages are dropped.
    Drop,
    /// Each region of the range, which covers all of it, becomes a huge page.
    Collapse,
}

pub fn hva(page: u64) -> Hva {
    RAM + (page << PAGE_SHIFT)
}

pub fn page_of(hva: Hva) -> u64 {
    (hva.0 - RAM.0) >> PAGE_SHIFT
}

/// Whether the host sleeps before it answers for this page.
fn sleeps(page: u64) -> bool {
    page / REGION % 6 == 5
}

/// Returns mostly one of a few pages in each region, so that guests and meddlers meet; at times any page.
pub fn some_page(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => random.below(PAGES),
        _ => random.below(REGIONS) * REGION + random.below(24) * 7,
    }
}

impl Primary {
    pub fn new(mistake: Mistake, hazards: Hazards) -> Self {
        let region = || Region {
            lock: Mutex::new(()),
            huge: Page::default(),
            small: (0..REGION).map(|_| Page::default()).collect(),
        };
        Self {
            regions: (0..REGIONS).map(|_| region()).collect(),
            arena: Arena::new(),
            small: AtomicU64::new(SMALL),
            huge: AtomicU64::new(HUGE),
            mistake,
            l1: L1::new(VCPUS),
            hazards,
            chaos: Chaos::default(),
        }
    }

    /// The hypervisor in the guest.
    pub fn l1(&self) -> &L1 {
        &self.l1
    }

    /// Returns the table page of a frame, if it is one.
    pub fn table(&self, frame: Pfn) -> Option<NonNull<u8>> {
        self.arena.page(frame)
    }

    /// Returns what the host's own table has now.
    pub fn now(&self, hva: Hva) -> Option<HostPage> {
        let (region, index) = self.locate(page_of(hva));
        let huge = region.huge.get();
        if huge & PRESENT != 0 {
            let pfn = Pfn((huge >> 2) + index as u64);
            return Some(HostPage {
                pfn,
                level: Level::M2,
                writable: huge & WRITABLE != 0,
                ..HostPage::PLAIN
            });
        }
        let word = region.small[index].get();
        (word & PRESENT != 0).then_some(HostPage {
            pfn: Pfn(word >> 2),
            writable: word & WRITABLE != 0,
            ..HostPage::PLAIN
        })
    }

    /// Makes several changes at once, of pages that may be the same, while other threads make theirs: announces all
    /// before it makes the first, and holds locks only to edit entries.
    pub fn change_at_once<F: Format>(
        &self,
        idle: &mut Idle,
        vm: &Vm<F, Self>,
        changes: &[(Range<u64>, Change, Reason)],
    ) {
        let tell = |(pages, _, why): &(Range<u64>, Change, Reason)| {
            vm.invalidate(Span::new(hva(pages.start), hva(pages.end)), *why)
        };
        let begun: Vec<_> = changes.iter().map(tell).collect();
        let mut told = Vec::new();
        for invalidation in begun {
            told.push(invalidation.apply(idle).settle());
            std::thread::yield_now();
        }
        if self.mistake == Mistake::EndsFirst {
            told.clear();
            std::thread::yield_now();
        }
        for (pages, change, _) in changes {
            let _held = self.hold(pages);
            self.edit(pages, *change);
        }
    }

    /// Changes `pages` as a primary MMU does: announce, wait, change, end.
    pub fn change<F: Format>(
        &self,
        idle: &mut Idle,
        vm: &Vm<F, Self>,
        pages: Range<u64>,
        (change, why): (Change, Reason),
    ) {
        let _held = self.hold(&pages);
        if self.mistake == Mistake::RashHost {
            self.edit(&pages, change);
            std::thread::yield_now();
        }
        let _invalidation =
            vm.invalidate(Span::new(hva(pages.start), hva(pages.end)), why).apply(idle).settle();
        if self.mistake != Mistake::RashHost {
            // Time for accesses that the open invalidation must keep off.
            std::thread::yield_now();
            self.edit(&pages, change);
        }
    }

    /// Holds the regions of `pages`, and calls `work` with what changes them.
    pub fn with_regions(&self, pages: &Range<u64>, work: impl FnOnce(&dyn Fn(Change))) {
        let _held = self.hold(pages);
        work(&|change| self.edit(pages, change));
    }

    /// Splits the huge page of `region` into small ones, in place.
    pub fn demote(&self, region: u64) {
        let region = &self.regions[region as usize];
        let _held = region.hold();
        region.demote();
    }

    /// Makes the pages of `region` a huge one, if they lie so. No vCPU loses anything.
    pub fn promote(&self, region: u64) {
        let region = &self.regions[region as usize];
        let _held = region.hold();
        let first = region.small[0].get();
        let alike = |(index, word): (usize, &Page)| word.get() == first + ((index as u64) << 2);
        let congruent = (first >> 2).is_multiple_of(REGION);
        if region.huge.get() == 0
            && first & PRESENT != 0
            && congruent
            && region.small.iter().enumerate().all(alike)
        {
            region.huge.set(first);
        }
    }

    fn locate(&self, page: u64) -> (&Region, usize) {
        (&self.regions[(page / REGION) as usize], (page % REGION) as usize)
    }

    /// Returns every region of `pages`, in order.
    fn hold(&self, pages: &Range<u64>) -> Vec<MutexGuard<'_, ()>> {
        let regions = &self.regions[(pages.start / REGION) as usize..pages.end.div_ceil(REGION) as usize];
        regions.iter().map(Region::hold).collect()
    }

    fn edit(&self, pages: &Range<u64>, change: Change) {
        for first in (0..PAGES).step_by(REGION as usize) {
            let (region, _) = self.locate(first);
            let here = pages.start.max(first)..pages.end.min(first + REGION);
            if here.is_empty() {
                continue;
            }
            let whole = here.end - here.start == REGION;
            let huge = region.huge.get();
            if whole && (huge != 0 || change == Change::Collapse) {
                // Hidden until `huge` is zero.
                region.small.iter().for_each(|word| word.set(0));
                region.huge.set(match change {
                    Change::Move | Change::Collapse => {
                        self.huge.fetch_add(REGION, Relaxed) << 2 | PRESENT | WRITABLE
                    }
                    Change::Protect => huge & !WRITABLE,
                    Change::Drop => 0,
                });
                continue;
            }
            // Small pages first: `huge` hides them until all are right.
            let mut words = region.as_small();
            for page in here {
                let word = &mut words[(page - first) as usize];
                *word = match change {
                    _ if *word & PRESENT == 0 => 0,
                    Change::Move | Change::Collapse => self.fresh() | *word & WRITABLE,
                    Change::Protect => *word & !WRITABLE,
                    Change::Drop => 0,
                };
            }
            region.small.iter().zip(words).for_each(|(place, word)| place.set(word));
            region.huge.set(0);
        }
    }

    fn fresh(&self) -> u64 {
        self.small.fetch_add(1, Relaxed) << 2 | PRESENT
    }
}

impl Region {
    /// A thread whose callback panicked left the region as it was.
    fn hold(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its pages as small ones.
    fn as_small(&self) -> Vec<u64> {
        let huge = self.huge.get();
        let words = self.small.iter().zip(0..);
        words.map(|(word, index)| if huge == 0 { word.get() } else { huge + (index << 2) }).collect()
    }

    fn demote(&self) {
        let words = self.as_small();
        self.small.iter().zip(words).for_each(|(place, word)| place.set(word));
        self.huge.set(0);
    }
}

impl Host for Primary {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        let mut word = [Word(0)];
        self.read_all(hva, &mut word).then_some(word[0])
    }

    /// Misbehaves once a call, so that a flush, which reads whole tables, ends now and then.
    fn read_all(&self, hva: Hva, words: &mut [Word]) -> bool {
        let is_there = self.chaos.reads(hva, words)
            || (0..).zip(words).all(|(nth, word)| {
                let at = hva + nth * 8;
                let read = self.now(at).and_then(|_| self.l1.read(at));
                *word = read.unwrap_or(*word);
                read.is_some()
            });
        self.hazards.strike();
        is_there
    }

    fn compare_exchange(&self, hva: Hva, current: Word, new: Word) -> Option<Result<Word, Word>> {
        let exchanged = self
            .now(hva)
            .filter(|page| page.writable)
            .and_then(|_| self.l1.compare_exchange(hva, current, new));
        self.hazards.strike();
        exchanged
    }

    fn kick(&self, _: VcpuId) {
        self.hazards.strike();
    }

    fn broadcast_flush(&self, _: Span<Gfn>) -> bool {
        self.hazards.strike();
        // Says that it is done, and does nothing.
        self.mistake == Mistake::NoFlush
    }

    fn observe(&self, _: slat::trace::TraceEvent) {
        self.hazards.strike();
    }

    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        let found = if is_elsewhere(hva) {
            Some(elsewhere(hva))
        } else {
            (!sleeps(page_of(hva))).then(|| self.now(hva))?
        };
        self.hazards.strike();
        found
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        if is_elsewhere(hva) {
            return Ok(elsewhere(hva));
        }
        let (region, index) = self.locate(page_of(hva));
        let held = region.hold();
        let wanted = if access == Access::Write { WRITABLE } else { 0 };
        let (huge, small) = (region.huge.get(), &region.small[index]);
        match small.get() {
            _ if huge != 0 => region.huge.set(huge | wanted),
            0 => small.set(self.fresh() | wanted),
            word => small.set(word | wanted),
        }
        let answer = self.now(hva).ok_or(HostError::Fault);
        drop(held);
        (0..if sleeps(page_of(hva)) { 2 } else { 0 }).for_each(|_| std::thread::yield_now());
        self.hazards.strike();
        answer
    }
}

// SAFETY: the arena lends each chunk once, and its two names are arithmetic.
unsafe impl TableMemory for Primary {
    fn lend(&self, _: usize) -> Option<(NonNull<u8>, Pfn)> {
        self.arena.lend()
    }

    unsafe fn take_back(&self, chunk: NonNull<u8>, _: Pfn, _: usize) {
        self.arena.take_back(chunk);
        self.hazards.strike();
    }

    fn at(&self, frame: Pfn) -> NonNull<u8> {
        self.arena.page(frame).expect("the engine follows links only")
    }
}
