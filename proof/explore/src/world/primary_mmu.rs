//! The primary MMU: regions of 2 MiB. Each is one huge page or small pages, present or not, writable or not.
//!
//! The host reuses frames at once, the last freed one first. It announces a change to the guests, changes the pages
//! when the debt is settled, and frees a frame when the invalidation has ended. Each frame and each page counts its
//! stores: if the counts differ, a store was lost.

use super::table_memory::Memory;
use crate::plan::Plan;
use crate::plan::layout::{REGION, REGIONS};
use crate::plan::op::Change;
use crate::random::Random;
use slat::table::{Own, TableMemory, TablesOf};
use slat::{
    Access, Event, Host, HostError, HostPage, Hva, Idle, Level, PAGE_SHIFT, Pfn, Reason, SecondaryMmu, Span,
    VcpuId,
};
use slat_machine::lock::Mutex as Lock;
use slat_machine::{AtomicU64, Ordering::Relaxed, rest};
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// The address of the first region.
const RAM: Hva = Hva(0x40_0000_0000);
/// First numbers of small frames and of huge frames.
const SMALL: u64 = 1 << 12;
const HUGE: u64 = 1 << 21;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;

/// A region: `frame << 2 | writable << 1 | present` for all of it, or, if that is zero, per page.
struct Region {
    /// Held by the thread that changes the region.
    lock: Lock<()>,
    huge: AtomicU64,
    small: Box<[AtomicU64]>,
}

/// State without an order of its own: it changes between two accesses.
struct Books {
    free: Vec<u64>,
    fresh: u64,
    /// Stores to frames in use, and to pages.
    frames: BTreeMap<u64, u64>,
    pages: BTreeMap<u64, u64>,
    /// Pages that are being replaced by frames with the same contents. Both frames may be read.
    replaced: BTreeMap<u64, [Pfn; 2]>,
    random: Random,
}

/// The primary MMU. See the module's header.
pub struct Primary {
    regions: Vec<Region>,
    books: Mutex<Books>,
    pub memory: Memory,
    /// Frequencies of [`Plan`].
    refuses: u64,
    silent: u64,
    breaks: u64,
    sleeps_ns: u64,
    /// The listener for changes that the host makes while it serves a page request.
    listener: OnceLock<Listener>,
}

/// The VM on this host.
struct Listener(*const dyn SecondaryMmu);

// SAFETY: all CPUs of a world run on one thread.
unsafe impl Send for Listener {}
// SAFETY: as above.
unsafe impl Sync for Listener {}

/// The host as the VM uses it.
#[derive(Clone)]
pub struct Handle(pub Arc<Primary>);

/// The address of a page.
pub fn hva(page: u64) -> Hva {
    RAM + (page << PAGE_SHIFT)
}

/// The page at an address.
pub fn page_of(hva: Hva) -> u64 {
    (hva.0 - RAM.0) >> PAGE_SHIFT
}

/// The addresses of pages.
pub fn hvas(pages: &Range<u64>) -> Span<Hva> {
    Span::new(hva(pages.start), hva(pages.end))
}

impl Primary {
    pub fn new(plan: &Plan) -> Arc<Self> {
        let region = |number: u64| Region {
            lock: Lock::default(),
            huge: AtomicU64::new(if number > 0 && plan.huge >> number & 1 == 1 {
                (HUGE + number * REGION) << 2 | PRESENT | WRITABLE
            } else {
                0
            }),
            small: (0..REGION).map(|_| AtomicU64::new(0)).collect(),
        };
        let books = Books {
            free: Vec::new(),
            fresh: REGIONS,
            frames: BTreeMap::new(),
            pages: BTreeMap::new(),
            replaced: BTreeMap::new(),
            random: Random::new(plan.seed ^ plan.turn << 48, 3),
        };
        Arc::new(Self {
            regions: (0..REGIONS).map(region).collect(),
            books: Mutex::new(books),
            memory: Memory::new(),
            refuses: plan.refuses,
            silent: plan.silent,
            breaks: plan.breaks,
            sleeps_ns: plan.host_sleeps_ns,
            listener: OnceLock::new(),
        })
    }

    /// Sets the VM that is told of changes.
    ///
    /// # Safety
    /// The VM does not move while this host serves page requests.
    pub unsafe fn listen(&self, vm: &dyn SecondaryMmu) {
        // SAFETY: only the lifetime differs; the caller guarantees it.
        let vm = unsafe { std::mem::transmute::<&dyn SecondaryMmu, &'static dyn SecondaryMmu>(vm) };
        // A second call keeps the first VM.
        let _ = self.listener.set(Listener(vm));
    }

    /// Moves a read-only page to a frame of its own, as when a share is broken. The caller holds its lock.
    fn break_share(&self, idle: &mut Idle, page: u64) {
        let Some(listener) = self.listener.get() else { return };
        // SAFETY: the caller of `listen` guarantees it.
        let vm = unsafe { &*listener.0 };
        let (hvas, mut freed) = (hvas(&(page..page + 1)), Vec::new());
        let told = vm.around(idle, Event::new(hvas, Reason::ChangePte), &mut |idle, told| {
            told.changed(idle, hvas, None);
            told.flush(idle);
            freed = self.edit(&(page..page + 1), Change::Move);
        });
        told.expect("it may wait");
        self.free(freed);
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("nothing panics here")
    }

    /// True once in `times`.
    fn random(&self, once_in: u64) -> bool {
        self.books().random.once_in(once_in)
    }

    fn region(&self, page: u64) -> &Region {
        &self.regions[(page / REGION) as usize]
    }

    /// The lock of the thread that changes a page or its contents, except through a guest.
    pub fn lock(&self, page: u64) -> impl Drop + use<'_> {
        self.region(page).lock.lock()
    }

    /// Returns whether a guest may use `pfn` for `page` now.
    pub fn allows(&self, page: u64, pfn: Pfn, access: Access) -> bool {
        let store = access == Access::Write;
        let now = self.find(page, |word| word.free().load(Relaxed));
        let there = now.is_some_and(|now| now.pfn == pfn && (now.writable || !store));
        there || !store && self.books().replaced.get(&page).is_some_and(|frames| frames.contains(&pfn))
    }

    /// Counts a store to a page through a frame.
    pub fn stored(&self, page: u64, pfn: Pfn) {
        let mut books = self.books();
        *books.frames.entry(pfn.0).or_default() += 1;
        *books.pages.entry(page).or_default() += 1;
    }

    /// Returns whether a frame has all stores to its page.
    pub fn is_whole(&self, page: u64, pfn: Pfn) -> bool {
        let books = self.books();
        books.frames.get(&pfn.0).copied().unwrap_or(0) == books.pages.get(&page).copied().unwrap_or(0)
    }

    /// Stores to a page, in any frame, that its frame contains now.
    pub fn stores(&self, page: u64) -> u64 {
        let now = self.find(page, |word| word.free().load(Relaxed));
        now.map_or(0, |now| self.books().frames.get(&now.pfn.0).copied().unwrap_or(0))
    }

    /// A device writes to a page under its lock, if the page is present and writable.
    pub fn device(&self, page: u64) -> bool {
        let now = self.find(page, |word| word.load(Relaxed)).filter(|now| now.writable);
        now.inspect(|now| self.stored(page, now.pfn)).is_some()
    }

    /// The replacement of a page, under its lock: its small read-only frame, and a frame with the same contents.
    pub fn replacement(&self, page: u64) -> Option<[HostPage; 2]> {
        let now = self.find(page, |word| word.load(Relaxed))?;
        (now.level == Level::K4 && !now.writable && now.pfn.0 < HUGE).then(|| {
            let mut books = self.books();
            let pfn = Pfn(books.copied(now.pfn.0));
            books.replaced.insert(page, [now.pfn, pfn]);
            [now, HostPage { pfn, ..now }]
        })
    }

    /// Switches the page to the other frame.
    pub fn replace(&self, page: u64, new: HostPage) {
        self.region(page).small[(page % REGION) as usize].store(new.pfn.0 << 2 | PRESENT, Relaxed);
    }

    /// Ends the replacement: no guest uses the old frame any more.
    pub fn replaced(&self, page: u64, old: HostPage) {
        self.books().replaced.remove(&page);
        self.free(vec![old.pfn.0]);
    }

    /// Changes `pages` of one region at one instant, without virtual time. Returns the frames to free.
    pub fn edit(&self, pages: &Range<u64>, change: Change) -> Vec<u64> {
        let region = self.region(pages.start);
        let (mut freed, huge) = (Vec::new(), region.huge.free().load(Relaxed));
        let mut books = self.books();
        match change {
            Change::Nothing => return freed,
            Change::Collapse => {
                let base = books.take_huge();
                for (word, index) in region.small.iter().zip(0..) {
                    let small = word.free().swap(0, Relaxed) >> 2;
                    // A huge page moves as a whole.
                    books.copy(if huge == 0 { small } else { (huge >> 2) + index }, base + index);
                    freed.push(small);
                }
                region.huge.free().store(base << 2 | PRESENT | WRITABLE, Relaxed);
                return freed;
            }
            _ => {}
        }
        if huge != 0 {
            for (word, index) in region.small.iter().zip(0..) {
                word.free().store(huge + (index << 2), Relaxed);
            }
            region.huge.free().store(0, Relaxed);
        }
        for page in pages.clone() {
            let entry = region.small[(page % REGION) as usize].free();
            let word = entry.load(Relaxed);
            if word & PRESENT == 0 {
                continue;
            }
            let frame = word >> 2;
            let word = match change {
                Change::Protect => word & !WRITABLE,
                Change::Drop => {
                    books.pages.remove(&page);
                    0
                }
                _ => books.copied(frame) << 2 | word & (PRESENT | WRITABLE),
            };
            entry.store(word, Relaxed);
            if change != Change::Protect {
                freed.push(frame);
            }
        }
        freed
    }

    /// Frees frames. They are the next ones to be used.
    pub fn free(&self, frames: Vec<u64>) {
        let mut books = self.books();
        for frame in frames {
            books.frames.remove(&frame);
            if frame != 0 && frame < HUGE {
                books.free.push(frame);
            }
        }
    }

    fn find(&self, page: u64, load: impl Fn(&AtomicU64) -> u64) -> Option<HostPage> {
        let (region, index) = (self.region(page), page % REGION);
        let huge = load(&region.huge);
        let (word, level) = match huge & PRESENT {
            0 => (load(&region.small[index as usize]), Level::K4),
            _ => (huge + (index << 2), Level::M2),
        };
        (word & PRESENT != 0).then_some(HostPage {
            pfn: Pfn(word >> 2),
            level,
            writable: word & WRITABLE != 0,
            ..HostPage::PLAIN
        })
    }
}

impl Books {
    fn take(&mut self) -> u64 {
        self.fresh += 1;
        let frame = self.free.pop().unwrap_or(SMALL + self.fresh);
        self.frames.remove(&frame);
        frame
    }

    fn take_huge(&mut self) -> u64 {
        self.fresh += 1;
        HUGE + self.fresh * REGION
    }

    /// A frame with the contents of `frame`.
    fn copied(&mut self, frame: u64) -> u64 {
        let to = self.take();
        self.copy(frame, to);
        to
    }

    fn copy(&mut self, from: u64, to: u64) {
        match self.frames.get(&from).copied().filter(|_| from != 0) {
            Some(stores) => self.frames.insert(to, stores),
            None => self.frames.remove(&to),
        };
    }
}

// SAFETY: each chunk is lent once; frame and address differ by a constant.
unsafe impl TableMemory for Handle {
    fn lend(&self, _: usize) -> Option<(NonNull<u8>, Pfn)> {
        self.0.memory.lend()
    }

    unsafe fn take_back(&self, _: NonNull<u8>, _: Pfn, _: usize) {
        self.0.memory.count_back();
    }

    fn at(&self, frame: Pfn) -> NonNull<u8> {
        self.0.memory.at(frame)
    }
}

impl Host for Handle {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        let primary = &self.0;
        if primary.silent > 0 && primary.random(primary.silent) {
            return None;
        }
        primary.find(page_of(hva), |word| word.load(Relaxed))
    }

    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        let (page, primary) = (page_of(hva), &self.0);
        let region = primary.region(page);
        if primary.refuses > 0 && primary.random(primary.refuses) {
            let refusals = [HostError::NoMemory, HostError::Io, HostError::Poisoned, HostError::Fault];
            return Err(primary.books().random.pick(&refusals));
        }
        let _held = region.lock.lock();
        if primary.sleeps_ns > 0 {
            rest(primary.sleeps_ns);
        }
        let wanted = if access == Access::Write { WRITABLE } else { 0 };
        let huge = region.huge.load(Relaxed);
        if huge != 0 {
            region.huge.store(huge | wanted, Relaxed);
        } else {
            let small = &region.small[(page % REGION) as usize];
            let shared = small.load(Relaxed) & (PRESENT | WRITABLE) == PRESENT && wanted != 0;
            if shared && primary.breaks > 0 && primary.random(primary.breaks) {
                primary.break_share(idle, page);
            }
            let word = small.load(Relaxed);
            let word = if word == 0 { primary.books().take() << 2 | PRESENT } else { word };
            small.store(word | wanted, Relaxed);
        }
        primary.find(page, |word| word.load(Relaxed)).ok_or(HostError::Fault)
    }

    fn kick(&self, vcpu: VcpuId) {
        slat_machine::kick(vcpu.0);
    }
}
