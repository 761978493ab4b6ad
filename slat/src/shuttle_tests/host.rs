//! The primary MMU: four regions of 2 MiB, of which most guests have two. Each is one huge page or a few small ones,
//! present or not, writable or not.
//!
//! It reuses freed frames at once, the last one first. It announces each change first, and makes it when the debt is
//! settled. A frame is free when the invalidation has ended. Each frame counts the stores to it.
//!
//! Its words are loaded and stored one step at a time, with any ordering: under shuttle all are sequentially
//! consistent.

use super::memory::Memory;
use crate::notify::{Event, SecondaryMmu};
use crate::sync::prim::{AtomicU64, Mutex, Relaxed, quiet, step};
use crate::table::memory::{Own, TableMemory, TablesOf};
use crate::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::vec::Vec;

/// Small pages at the start of a region.
pub(super) const PAGES: u64 = 4;
/// Pages from one region to the next.
pub(super) const REGION: u64 = Level::M2.pages();
const REGIONS: u64 = 4;
/// Minimum number of steps of other threads between a sleeping host's look and its answer.
const SLEEP: u32 = 8;
/// The first region's address.
const RAM: Hva = Hva(0x40_0000_0000);

/// Frames of huge pages.
const HUGE: u64 = 1 << 20;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;

/// `frame << 2 | writable << 1 | present`; zero if no page is there.
type Word = AtomicU64;

#[derive(Default)]
struct Region {
    /// Held by the thread that changes it.
    lock: Mutex<()>,
    huge: Word,
    small: [Word; PAGES as usize],
    /// Its word when it was a huge page, for the pages beyond the small ones.
    rest: Word,
}

/// Free frames, and the number of stores to each frame.
#[derive(Default)]
struct Frames {
    free: Vec<u64>,
    fresh: u64,
    stores: BTreeMap<u64, u64>,
}

/// The primary MMU. See the module's header.
pub(super) struct Primary {
    regions: [Region; REGIONS as usize],
    frames: std::sync::Mutex<Frames>,
    /// A page that is being replaced by another with the same contents: both may be read.
    replaced: std::sync::Mutex<Option<(u64, [Pfn; 2])>>,
    /// Whether it sleeps before each answer.
    sleeps: bool,
    /// Whether all regions but the first are private memory.
    divided: bool,
    pub(super) memory: Memory,
}

/// The change of a range of pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// The pages move to other frames, with their contents.
    Move,
    /// The pages lose write permission.
    Protect,
    /// The pages are dropped.
    Drop,
    /// The region becomes a huge page.
    Collapse,
}

/// The host as a VM holds it.
#[derive(Clone)]
pub(super) struct Handle(pub(super) Arc<Primary>);

pub(super) fn hva(page: u64) -> Hva {
    RAM + (page << PAGE_SHIFT)
}

/// The host address of a page of private memory, if there is such memory.
pub(super) fn own(page: u64) -> Hva {
    PrivateMemory(1).at(page << PAGE_SHIFT)
}

/// Returns every page of the first two regions that guests use.
pub(super) fn pages() -> impl Iterator<Item = u64> {
    (0..2).flat_map(|region| (0..PAGES).map(move |index| region * REGION + index))
}

impl Primary {
    /// A host with nothing present; or with a huge page in each region, if `huge`.
    pub(super) fn new(huge: bool) -> Arc<Self> {
        let region = |number| Region {
            huge: Word::new(if huge { (HUGE + number * REGION) << 2 | PRESENT | WRITABLE } else { 0 }),
            ..Region::default()
        };
        Arc::new(Self {
            regions: core::array::from_fn(|number| region(number as u64)),
            frames: std::sync::Mutex::default(),
            replaced: std::sync::Mutex::default(),
            sleeps: false,
            divided: false,
            memory: Memory::new(),
        })
    }

    /// A host with nothing present, which sleeps before each answer: other threads run between look and answer.
    pub(super) fn sleepy() -> Arc<Self> {
        let mut primary = Self::new(false);
        Arc::get_mut(&mut primary).expect("no thread has it yet").sleeps = true;
        primary
    }

    /// A host with nothing present, and private memory in all regions but the first.
    pub(super) fn divided() -> Arc<Self> {
        let mut primary = Self::new(false);
        Arc::get_mut(&mut primary).expect("no thread has it yet").divided = true;
        primary
    }

    fn hvas(&self, pages: &Range<u64>) -> Span<Hva> {
        let name = if self.divided && pages.start >= REGION { own } else { hva };
        Span::new(name(pages.start), name(pages.end))
    }

    /// Whether a guest may use `pfn` for `page` at this instant.
    pub(super) fn allows(&self, page: u64, pfn: Pfn, access: Access) -> bool {
        let store = access == Access::Write;
        let now = self.find(page, |word| quiet(word).load(Relaxed));
        let there = now.is_some_and(|now| now.pfn == pfn && (now.writable || !store));
        let replaced = *self.replaced.lock().expect("no thread panics");
        there || !store && replaced.is_some_and(|(at, frames)| at == page && frames.contains(&pfn))
    }

    /// Counts a store.
    pub(super) fn stored(&self, pfn: Pfn) {
        *self.frames().stores.entry(pfn.0).or_default() += 1;
    }

    /// Returns the number of stores to a page, in all its frames.
    pub(super) fn stores(&self, page: u64) -> u64 {
        let now = self.find(page, |word| quiet(word).load(Relaxed));
        now.map_or(0, |now| self.frames().stores.get(&now.pfn.0).copied().unwrap_or(0))
    }

    /// Changes `pages`, which lie in one region, as a primary MMU does: announce, wait, change, end.
    pub(super) fn change<F: Format>(
        &self,
        idle: &mut Idle,
        vm: &Vm<F, Handle>,
        pages: Range<u64>,
        (change, why): (Change, Reason),
    ) {
        let region = self.region(pages.start);
        let _held = region.lock.lock();
        let invalidation = vm.invalidate(self.hvas(&pages), why).apply(idle).settle();
        let freed = self.edit(region, &pages, change);
        drop(invalidation);
        self.free(freed);
    }

    /// Changes pages in any number of regions, while others change them: announces first, and locks only for the edit.
    pub(super) fn change_beside<F: Format>(
        &self,
        idle: &mut Idle,
        vm: &Vm<F, Handle>,
        pages: Range<u64>,
        (change, why): (Change, Reason),
    ) {
        let invalidation = vm.invalidate(self.hvas(&pages), why).apply(idle).settle();
        let mut freed = Vec::new();
        for (region, first) in self.regions.iter().zip((0..).step_by(REGION as usize)) {
            let here = pages.start.max(first)..pages.end.min(first + REGION);
            if !here.is_empty() {
                let _held = region.lock.lock();
                freed.extend(self.edit(region, &here, change));
            }
        }
        drop(invalidation);
        self.free(freed);
    }

    /// Replaces `page`, a small one, by another with the same contents, in place, once no vCPU may write to it.
    pub(super) fn replace<F: Format>(&self, idle: &mut Idle, vm: &Vm<F, Handle>, page: u64) {
        let region = self.region(page);
        let _held = region.lock.lock();
        let entry = &region.small[(page % REGION) as usize];
        let hvas = self.hvas(&(page..page + 1));
        let protecting = vm.invalidate(hvas, Reason::WriteProtect).apply(idle).settle();
        let old = entry.load(Relaxed) & !WRITABLE;
        entry.store(old, Relaxed);
        drop(protecting);
        if old & PRESENT == 0 {
            return;
        }
        let new = self.copied(old >> 2) << 2 | PRESENT;
        let told = vm.around(idle, Event::new(hvas, Reason::ChangePte), &mut |idle, pages| {
            *self.replaced.lock().expect("no thread panics") =
                Some((page, [old, new].map(|word| Pfn(word >> 2))));
            entry.store(new, Relaxed);
            let page = HostPage { pfn: Pfn(new >> 2), writable: false, ..HostPage::PLAIN };
            pages.changed(idle, hvas, Some(page));
            pages.flush(idle);
            *self.replaced.lock().expect("no thread panics") = None;
        });
        told.expect("it may wait");
        self.free([old >> 2].into());
    }

    /// Swaps `page`, a small one, out and in again elsewhere, unless that would have to wait for a thread.
    pub(super) fn reclaim<F: Format>(&self, idle: &mut Idle, vm: &Vm<F, Handle>, page: u64) {
        let region = self.region(page);
        let _held = region.lock.lock();
        let pages = page..page + 1;
        let event = Event { may_block: false, ..Event::new(self.hvas(&pages), Reason::Reclaim) };
        let mut freed = Vec::new();
        let told = vm.around(idle, event, &mut |idle, told| {
            told.changed(idle, self.hvas(&pages), None);
            told.flush(idle);
            freed = self.edit(region, &pages, Change::Move);
        });
        if told.is_ok() {
            self.free(freed);
        }
    }

    fn edit(&self, region: &Region, pages: &Range<u64>, change: Change) -> Vec<u64> {
        let mut freed = Vec::new();
        let huge = region.huge.load(Relaxed);
        if change == Change::Collapse {
            let base = HUGE + (REGIONS + self.frames().huge()) * REGION;
            for (word, index) in region.small.iter().zip(0..).filter(|_| huge == 0) {
                let old = word.swap(0, Relaxed) >> 2;
                self.copy(old, base + index);
                freed.push(old);
            }
            region.rest.store(0, Relaxed);
            region.huge.store(base << 2 | PRESENT | WRITABLE, Relaxed);
            return freed;
        }
        if huge != 0 {
            // The small words first: a non-zero word hides the huge page.
            region.small.iter().zip(0..).for_each(|(word, index)| word.store(huge + (index << 2), Relaxed));
            region.rest.store(huge, Relaxed);
            region.huge.store(0, Relaxed);
        }
        if pages.end - pages.start == REGION {
            region.rest.store(0, Relaxed);
        }
        for page in pages.clone() {
            let Some(entry) = region.small.get((page % REGION) as usize) else { break };
            let word = entry.load(Relaxed);
            if word & PRESENT != 0 {
                let frame = word >> 2;
                let new = match change {
                    Change::Protect => word & !WRITABLE,
                    Change::Move | Change::Collapse => self.copied(frame) << 2 | word & (PRESENT | WRITABLE),
                    Change::Drop => 0,
                };
                if change != Change::Protect {
                    freed.push(frame);
                }
                entry.store(new, Relaxed);
            }
        }
        freed
    }

    fn find(&self, page: u64, load: impl Fn(&Word) -> u64) -> Option<HostPage> {
        let (region, index) = (self.region(page), page % REGION);
        let huge = load(&region.huge);
        let whole = |word| if word & PRESENT != 0 { word + (index << 2) } else { 0 };
        let (word, level) = match (huge & PRESENT, region.small.get(index as usize)) {
            (0, Some(small)) => (load(small), Level::K4),
            (0, None) => (whole(load(&region.rest)), Level::K4),
            _ => (whole(huge), Level::M2),
        };
        (word & PRESENT != 0).then_some(HostPage {
            pfn: Pfn(word >> 2),
            level,
            writable: word & WRITABLE != 0,
            ..HostPage::PLAIN
        })
    }

    fn region(&self, page: u64) -> &Region {
        &self.regions[(page / REGION) as usize]
    }

    fn frames(&self) -> std::sync::MutexGuard<'_, Frames> {
        self.frames.lock().expect("no thread panics")
    }

    fn free(&self, frames: Vec<u64>) {
        self.frames().free.extend(frames.into_iter().filter(|&frame| frame != 0 && frame < HUGE));
    }

    /// Returns a small frame with a copy of `frame`.
    fn copied(&self, frame: u64) -> u64 {
        let to = self.frames().take();
        self.copy(frame, to);
        to
    }

    fn copy(&self, from: u64, to: u64) {
        let mut frames = self.frames();
        let stores = frames.stores.get(&from).copied().unwrap_or(0);
        frames.stores.insert(to, stores);
    }
}

impl Frames {
    fn take(&mut self) -> u64 {
        self.fresh += 1;
        let frame = self.free.pop().unwrap_or(self.fresh);
        self.stores.remove(&frame);
        frame
    }

    /// Returns the number of frames of huge pages so far.
    fn huge(&mut self) -> u64 {
        self.fresh += 1;
        self.fresh
    }
}

impl Host for Handle {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        let asked = || self.0.find(page_of(hva), |word| word.load(Relaxed));
        (!self.0.sleeps).then(asked)?
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        let (page, primary) = (page_of(hva), &self.0);
        let region = primary.region(page);
        let held = region.lock.lock();
        let wanted = if access == Access::Write { WRITABLE } else { 0 };
        let huge = region.huge.load(Relaxed);
        let small = region.small.get((page % REGION) as usize).ok_or(HostError::Fault)?;
        match small.load(Relaxed) {
            _ if huge != 0 => region.huge.store(huge | wanted, Relaxed),
            0 => {
                let frame = primary.frames().take();
                small.store(frame << 2 | PRESENT | wanted, Relaxed);
            }
            word => small.store(word | wanted, Relaxed),
        }
        let answer = primary.find(page, |word| word.load(Relaxed)).ok_or(HostError::Fault);
        drop(held);
        (0..if primary.sleeps { SLEEP } else { 0 }).for_each(|_| step());
        answer
    }
}

pub(super) fn page_of(hva: Hva) -> u64 {
    hva.private_memory().map_or(hva.0 - RAM.0, |(_, offset)| offset) >> PAGE_SHIFT
}

// SAFETY: each chunk is lent once, and its two names are arithmetic.
unsafe impl TableMemory for Handle {
    fn lend(&self, _: usize) -> Option<(NonNull<u8>, Pfn)> {
        self.0.memory.lend()
    }

    unsafe fn take_back(&self, chunk: NonNull<u8>, _: Pfn, _: usize) {
        self.0.memory.take_back(chunk);
    }

    fn at(&self, frame: Pfn) -> NonNull<u8> {
        self.0.memory.page(frame)
    }
}
