//! A VM whose writes are logged, the threads that use it, and the rounds of their work.
//!
//! ```text
//! life      log on ─ round ─ round ─ round ─ log off         a new log, and a new shadow, for each life
//! round     all run ──────────────▶ all stand still          then the last harvest, and the judgement
//! ```
//! A log begins before a life's first round or in its middle, alternately. Guests run until each of the other
//! threads has had a number of turns. So all of them meet, however the machine shares its time.

use super::collector::{Collector, Way};
use super::record::{StoreRecord, Tally};
use super::{meddler, storing_threads};
use crate::thorough::thorough;
use crate::tries::tries;
use slat::baselines::{Baseline, MmuLock};
use slat::*;
use slat_mm::{AddressSpace, Advice, Arena, Backing, HostView, Ksm, LruSettings, Place, Prot, Swap};
use slat_vcpu::Window;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

pub const VCPUS: u64 = 2;
/// The fewest turns of each other thread in a round: at night or where a mistake must be found, and otherwise.
const TURNS: [u64; 2] = [12, 3];
/// The same for a collector that is alone with the guests.
const TURNS_ALONE: [u64; 2] = [60, 10];
/// The pages used then: more than a word of the log, and more than a vCPU stores to at once.
const FEW_PAGES: u64 = 80;
pub const LIVES: u64 = 2;
pub const ROUNDS: u64 = 3;

/// The slot whose log is judged: two regions of 2 MiB, and a part that ends within a word of 64 pages.
pub const SLOT: SlotId = SlotId(7);
pub const PAGES: u64 = 2 * 512 + 130;
/// Words of a page.
pub const WORDS: u64 = PAGE_SIZE / 8;
pub const HVA: Hva = Hva(1 << 40);
/// The places of the slot: with large pages, without, and across 1 GiB.
pub const PLACES: [Gfn; 3] = [Gfn(0), Gfn(0x4000 + 77), Gfn((1 << 18) - 512)];

/// Another slot, whose log begins and ends. What it tells is not judged.
pub const NEIGHBOUR: SlotId = SlotId(3);
pub const NEIGHBOUR_PAGES: u64 = 64;
pub const NEIGHBOUR_AT: Gfn = Gfn(0x2000);

/// The host's page sizes, and what happens to large pages when the log begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sizes {
    /// There are no large pages.
    Small,
    Eager,
    Lazy,
}

/// A mistake on purpose. It must be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    None,
    /// Pages are armed again without a flush.
    NoFlush,
    /// A harvest is committed though its pages were not copied.
    CommitsTooEarly,
    /// Pages are copied first, and cleared afterwards.
    CopiesFirst,
    /// A device writes, and does not mark.
    SilentDevice,
}

/// The threads beside the vCPUs.
#[derive(Clone, Copy)]
pub enum Other {
    Meddler,
    Device,
    Collector,
}

impl Other {
    const ALL: u64 = 3;
}

/// The settings of a world.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub way: Way,
    pub track: Track,
    pub sizes: Sizes,
    pub initially_set: bool,
    pub lock: MmuLock,
    /// Further settings of the builder: whether large pages do not execute, and whether the VM uses the reasons
    /// of invalidations.
    pub nx_huge_pages: bool,
    pub contexts: bool,
    pub around: Around,
    pub mistake: Mistake,
    pub seed: u64,
}

/// The activity beside the guests and the collector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Around {
    Everything,
    /// Nothing. Guests and collector use a few pages without a pause, so a fault meets a harvest at every point
    /// of it.
    Nothing,
    /// The same, and those pages are zapped all the time.
    Zaps,
}

/// Everything that the threads share.
pub struct World<F: Format> {
    pub setting: Setting,
    pub ksm: Arc<Ksm>,
    pub space: Arc<AddressSpace>,
    pub vm: Arc<Vm<F, HostView>>,
    /// The first frame of the slot, as the guests know it.
    pub base: AtomicU64,
    /// The contents of each word of memory, kept by the threads that store: each word has one owner.
    pub image: Vec<AtomicU64>,
    pub record: StoreRecord,
    /// Steps of all guests.
    pub steps: AtomicU64,
    /// Number of times that a ring was full.
    pub ring_full: AtomicU64,
    /// The threads still at work in this round: the guests, and all but the collector.
    pub guests_at_work: AtomicU64,
    pub at_work: AtomicU64,
    /// Turns of each other thread in this round.
    turns: [AtomicU64; Other::ALL as usize],
    /// Threads that have come to a standstill, over all rounds.
    standing: AtomicU64,
    over: AtomicBool,
    wrong: Mutex<Vec<String>>,
}

impl<F: Format> World<F> {
    fn new(setting: Setting, idle: &mut Idle) -> Self {
        let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
        let swap = Swap::builder().memory(1 << 20).build(&arena).unwrap();
        let builder = AddressSpace::builder(&arena).swap(&swap).lru(LruSettings::default());
        let space = builder.thp(setting.sizes != Sizes::Small).build().unwrap();
        let bytes = (PAGES + NEIGHBOUR_PAGES) * PAGE_SIZE;
        let memory = space.mmap(Place::Fixed(HVA), bytes, Prot::ReadWrite, Backing::Anonymous).unwrap();
        // Pages without a store by a guest have the same contents.
        space.madvise(idle, memory, Advice::Mergeable).unwrap();
        let ksm = Ksm::builder(&arena).build().unwrap();
        ksm.add(&space).unwrap();
        // A host that says that a flush was broadcast, and does none.
        let is_silent = setting.mistake == Mistake::NoFlush;
        let builder = Vm::<F, _>::builder(HostView::new(&space).with_broadcast(move |_| is_silent))
            .vcpus(VCPUS as u32 + 1)
            .baseline(Baseline::NONE.mmu_lock(setting.lock).contexts(setting.contexts))
            .nx_huge_pages(setting.nx_huge_pages)
            .dirty_log(setting.policy());
        let vm = Arc::new(builder.build().unwrap());
        space.register(&vm);
        vm.memory()
            .commit(idle, |tx| {
                tx.create(Slot::new(SLOT, PLACES[0], PAGES, HVA))?;
                tx.create(neighbour())
            })
            .unwrap();
        Self {
            setting,
            ksm,
            space,
            vm,
            base: AtomicU64::new(PLACES[0].0),
            image: (0..PAGES * WORDS).map(|_| AtomicU64::new(0)).collect(),
            record: StoreRecord::new(),
            steps: AtomicU64::new(0),
            ring_full: AtomicU64::new(0),
            guests_at_work: AtomicU64::new(0),
            at_work: AtomicU64::new(0),
            turns: [const { AtomicU64::new(0) }; Other::ALL as usize],
            standing: AtomicU64::new(0),
            over: AtomicBool::new(false),
            wrong: Mutex::default(),
        }
    }

    /// A vCPU's view of all frames.
    pub fn window(&self) -> Window {
        let arena = self.space.arena();
        // SAFETY: the arena's mapping, which outlives the vCPUs; frame numbers start after a huge page.
        unsafe { Window::new(arena.base(), arena.stats().frames + Level::M2.pages()) }
    }

    /// Restores memory to what was stored, in pages as large as possible, and maps it so. One life then does
    /// not depend on the one before. Called while all stand still.
    pub fn renew_memory(&self, idle: &mut Idle) {
        self.vm.memory().commit(idle, |tx| tx.move_to(SLOT, PLACES[0]).map(drop)).unwrap();
        self.base.store(PLACES[0].0, SeqCst);
        let memory = Span::sized(HVA, PAGES * PAGE_SIZE);
        self.space.dontneed(idle, memory).unwrap();
        let mut bytes = [0; PAGE_SIZE as usize];
        for page in 0..PAGES {
            self.stored(page, &mut bytes);
            self.space.write(idle, HVA + page * PAGE_SIZE, &bytes).unwrap();
        }
        let mut vcpu = self.vm.vcpu(VcpuId(VCPUS as u32)).expect("no other thread uses the vCPU");
        let base = Gfn(self.base.load(SeqCst));
        for page in 0..PAGES {
            let access = if page % 3 == 0 { Access::Write } else { Access::Read };
            let _ = vcpu.fault(idle, Fault { gpa: (base + page).gpa(), access }).unwrap();
            if access == Access::Write {
                // This counts for the round before. This round's log may tell the page only if the log begins
                // while threads work.
                self.record.stored(page, 0);
            }
        }
    }

    /// The bytes stored to `page`. Called while all stand still.
    pub fn stored(&self, page: u64, bytes: &mut [u8; PAGE_SIZE as usize]) {
        bytes.fill(0);
        let words = &self.image[(page * WORDS) as usize..][..WORDS as usize];
        for (at, word) in words.iter().enumerate() {
            // Most words are 0, which even an unoptimized build skips quickly.
            let word = word.load(SeqCst);
            if word != 0 {
                bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
            }
        }
    }

    /// Reports an error, and ends all threads.
    pub fn wrong(&self, what: impl FnOnce() -> String) {
        self.wrong.lock().unwrap().push(what());
        self.end();
    }

    pub fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }

    fn end(&self) {
        self.over.store(true, SeqCst);
    }

    /// Stands still until all threads do, for the `times`-th time. Returns false if the world is over.
    pub fn stand(&self, times: &mut u64) -> bool {
        *times += 1;
        self.standing.fetch_add(1, SeqCst);
        while self.standing.load(SeqCst) < *times * (VCPUS + Other::ALL) && !self.is_over() {
            thread::yield_now();
        }
        !self.is_over()
    }

    /// Counts a turn of one of the other threads.
    pub fn had_a_turn(&self, who: Other) {
        self.turns[who as usize].fetch_add(1, SeqCst);
    }

    /// Whether guests have met the others often enough in this round.
    pub fn is_round_over(&self) -> bool {
        let turns = |who: Other| self.turns[who as usize].load(SeqCst);
        self.is_over()
            || match self.setting.around {
                Around::Nothing | Around::Zaps => turns(Other::Collector) >= self.setting.turns(TURNS_ALONE),
                Around::Everything => {
                    let enough = self.setting.turns(TURNS);
                    self.turns.iter().all(|turns| turns.load(SeqCst) >= enough)
                }
            }
    }

    /// Lets the guests make `steps` steps, or finish their round.
    pub fn let_guests_run(&self, steps: u64) {
        let steps = if self.setting.around == Around::Everything { steps } else { steps.min(1) };
        let until = self.steps.load(SeqCst) + steps;
        while self.steps.load(SeqCst) < until && self.guests_at_work.load(SeqCst) > 0 && !self.is_over() {
            thread::yield_now();
        }
    }
}

impl Setting {
    /// Small pages, a log that begins clear, no locks, all other threads, no mistake.
    pub fn plain(way: Way, track: Track, seed: u64) -> Self {
        Self {
            way,
            track,
            sizes: Sizes::Small,
            initially_set: false,
            lock: MmuLock::None,
            nx_huge_pages: false,
            contexts: true,
            around: Around::Everything,
            mistake: Mistake::None,
            seed,
        }
    }

    fn turns(self, [many, some]: [u64; 2]) -> u64 {
        if self.mistake == Mistake::None && tries(0) == 0 { thorough(many, some) } else { many }
    }

    /// The number of pages that guests use, from the slot's first page on.
    pub fn pages_in_use(self) -> u64 {
        if self.around == Around::Everything { PAGES } else { FEW_PAGES }
    }

    fn policy(self) -> DirtyLog {
        let log = match self.way {
            // The smallest size, so that the ring is full sometimes.
            Way::Ring => DirtyLog::ring(RingSize::new(4096).unwrap()),
            _ => DirtyLog::bitmap(),
        };
        let splitting = if self.sizes == Sizes::Lazy { Splitting::Lazy } else { Splitting::Eager };
        let log = log.track(self.track).splitting(splitting);
        if self.initially_set { log.initially_set() } else { log }
    }
}

pub fn neighbour() -> Slot {
    Slot::new(NEIGHBOUR, NEIGHBOUR_AT, NEIGHBOUR_PAGES, HVA + PAGES * PAGE_SIZE)
}

/// Ends the world where its thread panics, so that no other thread waits for it.
struct EndOnPanic<'w, F: Format>(&'w World<F>);

impl<F: Format> Drop for EndOnPanic<'_, F> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.end();
        }
    }
}

/// Runs a thread's part of each round, between two standstills.
fn work<F: Format>(world: &World<F>, is_guest: bool, mut round: impl FnMut(&mut Idle)) {
    let _end_on_panic = EndOnPanic(world);
    let mut idle = Idle::take().expect("the closure has its own thread");
    let mut times = 0;
    while world.stand(&mut times) {
        round(&mut idle);
        if is_guest {
            world.guests_at_work.fetch_sub(1, SeqCst);
        }
        world.at_work.fetch_sub(1, SeqCst);
        if !world.stand(&mut times) || times == 2 * LIVES * ROUNDS {
            return;
        }
    }
}

/// Runs a world to its end, or until an error. Panics on an error, unless the world has a mistake.
pub fn run<F: Format>(setting: Setting) -> Tally {
    let mut idle = Idle::take().expect("the test has its own thread");
    let world = World::<F>::new(setting, &mut idle);
    let mut collector = Collector::new(&world);
    thread::scope(|scope| {
        let world = &world;
        let _end_on_panic = EndOnPanic(world);
        for id in 0..VCPUS {
            scope.spawn(move || {
                let mut guest = storing_threads::Guest::new(world, id);
                let mut cpu = storing_threads::cpu(world, id);
                work(world, true, |idle| guest.round(&mut cpu, idle));
            });
        }
        scope.spawn(move || {
            let mut device = storing_threads::Device::new(world);
            work(world, false, |idle| device.round(idle));
        });
        scope.spawn(move || {
            let mut meddler = meddler::Meddler::new(world);
            work(world, false, |idle| meddler.round(idle));
        });
        let mut times = 0;
        for life in 0..LIVES {
            for round in 0..ROUNDS {
                world.guests_at_work.store(VCPUS, SeqCst);
                world.at_work.store(VCPUS + 2, SeqCst);
                world.turns.iter().for_each(|turns| turns.store(0, SeqCst));
                collector.before_round(&mut idle, life, round);
                if !world.stand(&mut times) {
                    return;
                }
                collector.round(&mut idle);
                if !world.stand(&mut times) {
                    return;
                }
                collector.after_round(&mut idle);
            }
        }
    });
    let mut tally = collector.tally();
    let wrong = world.wrong.lock().unwrap();
    tally.wrong = wrong.len() as u64;
    if setting.mistake == Mistake::None {
        assert!(wrong.is_empty(), "{} {setting:?}:\n{}", F::NAME, wrong.join("\n"));
    }
    tally
}
