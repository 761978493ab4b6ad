//! The stage: the host's memory, which guests use and meddlers change, and what is certainly known of it.

use crate::groups::Groups;
use crate::log::Log;
use crate::oracle::Ledger;
use crate::random::Random;
use crate::swap::{self, Disk};
use parking_lot::RwLock;
use slat::table::{Own, TableMemory, TablesOf, Word};
use slat::{
    Access, Again, Event, Gfn, Host, HostError, HostPage, Hva, Idle, Level, PAGE_SIZE, Pages, Pfn, Reason,
    SecondaryMmu, Span, notify::NoPages,
};
use slat_mm::{
    AddressSpace, Advice, Arena, ArenaHandle, Backing, Balancer, HostView, Ksm, Place, Policy, Prot,
    Settings, Swap,
};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Zones of 2 MiB.
pub const ZONES: u64 = 4;
pub const ZONE: u64 = Level::M2.pages();
pub const PAGES: u64 = ZONES * ZONE;
/// Mappings are not cut into smaller pieces.
pub const BLOCK: u64 = 64;

/// Pages that all threads use again and again, so that vCPUs have them in their TLBs when they change.
pub const HOT: usize = 48;

/// Threads run on each node, and pages move to where they are used.
pub const NODES: u8 = 2;

/// The address of the guests' memory.
const BASE: Hva = Hva(0x4000_0000);
/// Where blocks go for a while. Their distances are as in [`BASE`], but their places within 2 MiB differ.
const AWAY: Hva = Hva(0x6000_0000 + PAGE_SIZE);

/// The address of the memory of a hypervisor in a guest, and its pages.
pub const NESTED: Hva = Hva(0x8000_0000);
pub const NESTED_PAGES: u64 = 32 * ZONE;

pub fn hva(page: u64) -> Hva {
    BASE + page * PAGE_SIZE
}

pub fn hvas(pages: &Range<u64>) -> Span<Hva> {
    Span::new(hva(pages.start), hva(pages.end))
}

pub fn away(page: u64) -> Hva {
    AWAY + page * PAGE_SIZE
}

/// A mistake on purpose. The guests must find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    None,
    /// The host says that each flush was broadcast, and does none.
    NoFlush,
    /// A change is reported when the next one comes. Its frames have been freed by then.
    TellsLate,
    /// Changes for this reason are not reported.
    Deaf(Reason),
    /// A swap device discards what it is given.
    KeepsNothing,
    /// The VM whose guest has a guest is told of nothing.
    NestedForgotten,
}

impl Mistake {
    /// Whether there are limits, an evictor, a neighbour and a log. Where flushes or notifications are wrong
    /// there are none: the lines in memory have to show such a mistake.
    pub fn runs_everything(self) -> bool {
        matches!(self, Self::None | Self::KeepsNothing)
    }

    /// Whether the end of a short world shows the mistake.
    pub fn shows_in_the_end(self) -> bool {
        matches!(self, Self::None | Self::KeepsNothing)
    }

    /// Whether guests may write to free frames. No VM may then make tables of them.
    pub fn spoils_frames(self) -> bool {
        match self {
            Self::None | Self::KeepsNothing => false,
            Self::NoFlush | Self::TellsLate | Self::NestedForgotten => true,
            // A guest that still has such a page may write to it after others got its frame.
            Self::Deaf(why) => {
                matches!(why, Reason::Unmap | Reason::Clear | Reason::Migrate | Reason::Reclaim)
            }
        }
    }
}

/// Everything that the threads of a world share.
pub struct Stage {
    pub arena: Arc<Arena>,
    pub space: Arc<AddressSpace>,
    pub ksm: Arc<Ksm>,
    pub swap: Arc<Swap>,
    /// The device that fails.
    pub disk: Arc<Disk>,
    pub groups: Groups,
    /// Held by the thread that takes the log.
    pub log: parking_lot::Mutex<Option<Log>>,
    /// One for each policy.
    pub balancers: Vec<Balancer>,
    /// A reader needs the zone's mappings to stay. A writer takes them away for a while.
    pub zones: Vec<RwLock<()>>,
    pub ledger: Ledger,
    /// See [`HOT`].
    pub hot: Vec<AtomicU64>,
    /// Held by the thread that clears soft-dirty, until it has read what was written. No other thread clears it
    /// meanwhile.
    pub soft_dirty: parking_lot::Mutex<()>,
    pub counts: Counts,
    pub mistake: Mistake,
    pub seed: u64,
    /// Whether there are huge pages, and one frame for all pages of zeroes.
    pub thp: bool,
    /// The number of threads with a lane.
    pub lanes: u64,
    over: AtomicBool,
}

#[derive(Default)]
pub struct Counts {
    /// Changes begun. They show whether any thread makes progress.
    pub begun: AtomicU64,
    /// Guest accesses to pages that were not there at the moment.
    pub refused: AtomicU64,
    pub wrong: AtomicU64,
}

/// Adds one.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Stage {
    pub fn new(idle: &mut Idle, thp: bool, mistake: Mistake, seed: u64, lanes: u64) -> Self {
        let arena = Arena::builder().limit(256 << 20).nodes(NODES).poison(0xdd).build().unwrap();
        let (swap, disk) = swap::build(&arena, mistake);
        let groups = Groups::new(&arena, mistake);
        let space = AddressSpace::builder(&arena).thp(thp).swap(&swap).group(&groups.guests).build().unwrap();
        let memory = space.mmap(Place::Fixed(BASE), PAGES * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous);
        space.madvise(idle, memory.unwrap(), Advice::Mergeable).unwrap();
        let nested =
            space.mmap(Place::Fixed(NESTED), NESTED_PAGES * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous);
        space.madvise(idle, nested.unwrap(), Advice::Mergeable).unwrap();
        let ksm = Ksm::builder(&arena).use_zero_pages(thp).build().unwrap();
        ksm.add(&space).unwrap();
        let balancer = |policy| Balancer::new(&space, Settings { policy, ..Settings::default() });
        Self {
            balancers: [Policy::Range, Policy::Page, Policy::PageBatched].map(balancer).into(),
            ksm,
            swap,
            disk,
            groups,
            log: parking_lot::Mutex::default(),
            arena,
            space,
            zones: (0..ZONES).map(|_| RwLock::new(())).collect(),
            ledger: Ledger::new(PAGES, lanes),
            hot: (0..HOT as u64)
                .map(|place| AtomicU64::new(Random::new(seed ^ place << 32).below(PAGES)))
                .collect(),
            soft_dirty: parking_lot::Mutex::default(),
            counts: Counts::default(),
            mistake,
            seed,
            thp,
            lanes,
            over: AtomicBool::new(false),
        }
    }

    /// One of the pages that all threads use.
    pub fn some_hot(&self, random: &mut Random) -> u64 {
        self.hot[random.below(HOT as u64) as usize].load(Relaxed)
    }

    /// Reports an error. The first report is printed, unless a mistake is on purpose. All threads then end.
    pub fn wrong(&self, what: impl FnOnce() -> String) {
        count(&self.counts.wrong);
        if !self.over.swap(true, SeqCst) && self.mistake == Mistake::None {
            eprintln!("seed {}: {}", self.seed, what());
        }
    }

    pub fn end(&self) {
        self.over.store(true, SeqCst);
    }

    pub fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }
}

/// The address space as a VM's host. With a mistake, guests may write to freed memory. The VM's tables are then
/// outside the arena, so that no walk follows what guests wrote.
pub struct Primary {
    view: HostView,
    tables: ArenaHandle,
    is_silent: bool,
}

impl Primary {
    pub fn new(stage: &Stage) -> Self {
        let elsewhere = || Arena::builder().limit(16 << 20).build().unwrap();
        let arena = if stage.mistake.spoils_frames() { elsewhere() } else { stage.arena.clone() };
        let is_silent = stage.mistake == Mistake::NoFlush;
        Self { view: HostView::new(&stage.space), tables: ArenaHandle::from(&arena), is_silent }
    }
}

// SAFETY: passed on to the arena's handle, which keeps the contract.
unsafe impl TableMemory for Primary {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        self.tables.lend(pages)
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        // SAFETY: required of the caller.
        unsafe { self.tables.take_back(first, pfn, pages) }
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        self.tables.at(pfn)
    }
}

impl Host for Primary {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        self.view.lookup(hva, access)
    }

    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.view.resolve(idle, hva, access)
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        self.view.read(hva)
    }

    fn read_all(&self, hva: Hva, words: &mut [Word]) -> bool {
        self.view.read_all(hva, words)
    }

    fn compare_exchange(&self, hva: Hva, current: Word, new: Word) -> Option<Result<Word, Word>> {
        self.view.compare_exchange(hva, current, new)
    }

    fn broadcast_flush(&self, _: Span<Gfn>) -> bool {
        // Says that it is done, and does nothing.
        self.is_silent
    }
}

/// A listener between the address space and the VM. It makes the mistakes of notification.
pub struct Mistaken {
    pub to: Arc<dyn SecondaryMmu>,
    pub mistake: Mistake,
    pub last: Mutex<Option<Event>>,
}

impl SecondaryMmu for Mistaken {
    fn around(
        &self,
        idle: &mut Idle,
        event: Event,
        change: &mut dyn FnMut(&mut Idle, &mut dyn Pages),
    ) -> Result<(), Again> {
        let last = match self.mistake {
            Mistake::TellsLate => self.last.lock().unwrap().replace(event),
            Mistake::Deaf(why) if why == event.why => None,
            _ => return self.to.around(idle, event, change),
        };
        change(idle, &mut NoPages);
        last.map_or(Ok(()), |last| self.to.around(idle, last, &mut |_, _| {}))
    }
}
