//! Each use of a translation is judged: it must be `{ T(t)(g2) : t since that vCPU's last flush } ∘ { host, now
//! }` ([`Said`]).
//!
//! T's A and D bits must show the use: a processor sets them before it keeps the translation.
//!
//! A world is of one [`Kind`]: T is a hypervisor's EPT, or the page tables of a guest without a second stage.
//! One world in three has one vCPU, and the others have two. Table memory is short sometimes, so tables of
//! shadows are freed while both vCPUs run on them. No frame of the host is used twice. A translation to a
//! withdrawn frame therefore always shows.
//!
//! A [`Way::Stepped`] world has one thread: L1, the host and the vCPUs take random turns, which are the same
//! each time.

use super::kinds::{Builds, Ept, Kind, Paging, Scope};
use crate::tries::tries;
use slat::nested::NestedError;
use slat::table::Word;
use slat::table::formats::{Ept4, Npt4, Npt5, X64};
use slat::*;
use slat_vcpu::cpu::{Core, Exit, L2Exit, Program, Step};
use slat_vcpu::nested::{Said, Since};
use slat_vcpu::{Cpu, Window};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

const BASE: Hva = Hva(1 << 40);
/// L1's tables are in the frames before this one. L2 gets frames from here on.
const DATA: u64 = 24;
const PAGES: u64 = 48;
/// L2's frames in use. They span two leaf tables of T.
pub const G2S: Span<Gfn> = Span::new(Gfn(508), Gfn(516));
/// Uses by each vCPU.
const USES: u64 = 6_000;
const WRITABLE: u64 = 1 << 63;

/// L1's memory, and the host's frames behind it.
pub struct Unique {
    words: Vec<AtomicU64>,
    frames: Vec<AtomicU64>,
    next: AtomicU64,
}

fn number(hva: Hva) -> usize {
    ((hva.0 - BASE.0) / PAGE_SIZE) as usize
}

impl Unique {
    fn word(&self, hva: Hva) -> &AtomicU64 {
        &self.words[(hva.0 - BASE.0) as usize / 8]
    }

    fn now(&self, g1: Gfn) -> HostPage {
        let frame = self.frames[g1.0 as usize].load(SeqCst);
        HostPage { pfn: Pfn(frame & !WRITABLE), writable: frame & WRITABLE != 0, ..HostPage::PLAIN }
    }
}

impl Host for Unique {
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        // Some pages come late.
        let page = self.now(Gfn(number(hva) as u64));
        (number(hva) % 5 != 4 && (page.writable || access != Access::Write)).then_some(page)
    }

    fn resolve(&self, _: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        if access == Access::Write {
            self.frames[number(hva)].fetch_or(WRITABLE, SeqCst);
        }
        Ok(self.now(Gfn(number(hva) as u64)))
    }

    fn read(&self, hva: Hva) -> Option<Word> {
        Some(Word(self.word(hva).load(SeqCst)))
    }

    fn compare_exchange(&self, hva: Hva, old: Word, new: Word) -> Option<Result<Word, Word>> {
        Some(self.word(hva).compare_exchange(old.0, new.0, SeqCst, SeqCst).map(Word).map_err(Word))
    }
}

pub struct World<F: Format, K> {
    vm: Vm<F, Unique>,
    said: Said,
    /// T holds the last recorded entries.
    storing: Mutex<()>,
    /// For each vCPU, the time of the last flush, its own or a broadcast. Older entries of T no longer count.
    flushed: Vec<Mutex<HashMap<Key, Since>>>,
    over: AtomicBool,
    wrong: Mutex<Option<String>>,
    used: AtomicU64,
    /// Whether the engine ignores L1's flushes.
    ignores: bool,
    /// Whether the host tells the engine of frames that it takes back.
    tells: bool,
    kind: PhantomData<K>,
}

/// A root of T, and a frame of L2.
type Key = (u64, Gfn);

/// T: frame 8 links 9, 9 links 10, and 10 the leaf tables 11 and 12. The next root is in the next frame.
pub fn root_of(root: u64) -> u64 {
    8 + 5 * root
}

fn entry((root, g2): Key) -> Hva {
    BASE + (root_of(root) + 3 + g2.0 / 512) * PAGE_SIZE + g2.0 % 512 * 8
}

/// The key of an entry in the history of T.
fn told((root, g2): Key) -> Gfn {
    Gfn(root << 40 | g2.0)
}

/// L2, which checks the frames of its pages.
pub struct Uses<'w, F: Format, K> {
    world: &'w World<F, K>,
    root: u64,
    id: usize,
    random: fastrand::Rng,
    /// Where T refused an access of this vCPU, older entries of T do not count.
    refused: HashMap<Key, Since>,
    left: u64,
}

impl<F: Format, K: Kind> Program for Uses<'_, F, K> {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        if self.left == 0 || self.world.over.load(SeqCst) {
            return Ok(Step::Stop);
        }
        let mut random = self.random.clone();
        let g2 = G2S.start + random.u64(..G2S.len());
        let access = [Access::Read, Access::Write][random.usize(..2)];
        let pfn = core.frame_of(g2.gpa(), access)?;
        self.random = random;
        self.left -= 1;
        let world = self.world;
        let key = (self.root, g2);
        let since = world.flushed[self.id].lock().unwrap()[&key];
        let since = since.max(self.refused.get(&key).copied().unwrap_or_default());
        let allowed = world.said.since(told(key), since);
        let is_marked = world.is_marked(key, access) || world.said.has_changed(told(key), since);
        let is_it = |&(g1, perms): &(Gfn, Perms)| {
            let now = world.vm.host().now(g1);
            now.pfn == pfn && perms.allows(access) && (now.writable || access != Access::Write)
        };
        if !allowed.iter().any(is_it) || !is_marked {
            let now: Vec<_> =
                allowed.iter().map(|&(g1, perms)| (g1, perms, world.vm.host().now(g1))).collect();
            let marked = if is_marked { "" } else { ", without A or D in T" };
            let what = format!("vCPU {} {access:?} {g2:?}: {pfn:?}, allowed {now:?}{marked}", self.id);
            world.wrong.lock().unwrap().get_or_insert(what);
            world.over.store(true, SeqCst);
        }
        world.used.fetch_add(1, SeqCst);
        // Leave sometimes, so that L1 can work.
        Ok(if self.random.u8(..32) == 0 { Step::Stop } else { Step::Next })
    }
}

impl<F: Format, K: Kind> World<F, K> {
    fn new(idle: &mut Idle, vcpus: u32, left_out: LeftOut) -> Self
    where
        K: Builds<F>,
    {
        let (ignores, tells) = (left_out == LeftOut::L1Flushes, left_out != LeftOut::HostEvents);
        let host = Unique {
            words: (0..PAGES * 512).map(|_| AtomicU64::new(0)).collect(),
            frames: (0..PAGES).map(|page| AtomicU64::new(page | WRITABLE)).collect(),
            next: AtomicU64::new(PAGES),
        };
        let builder = K::builder(host).vcpus(vcpus);
        let vm = builder.build().unwrap();
        for (id, first, end) in [(0, 0, DATA), (1, DATA, DATA + 12), (2, DATA + 12, PAGES)] {
            let slot = Slot::new(SlotId(id), Gfn(first), end - first, BASE + first * PAGE_SIZE);
            vm.memory().commit(idle, |tx| tx.create(slot)).unwrap();
        }
        for root in 0..K::ROOTS {
            for (table, entry, link) in [(0, 0, 1), (1, 0, 2), (2, 0, 3), (2, 1, 4)] {
                let place = BASE + (root_of(root) + table) * PAGE_SIZE + entry * 8;
                vm.host().word(place).store((root_of(root) + link) << 12 | 7, SeqCst);
            }
        }
        let world = Self {
            vm,
            said: Said::default(),
            storing: Mutex::default(),
            flushed: (0..vcpus).map(|_| Mutex::default()).collect(),
            over: AtomicBool::new(false),
            wrong: Mutex::default(),
            used: AtomicU64::new(0),
            ignores,
            tells,
            kind: PhantomData,
        };
        Self::keys().for_each(|key| world.maps(key, Some(Gfn(DATA + key.1.0 % 16)), true));
        let now = world.said.now();
        for flushed in &world.flushed {
            flushed.lock().unwrap().extend(Self::keys().map(|key| (key, now)));
        }
        world
    }

    fn keys() -> impl Iterator<Item = Key> {
        (0..K::ROOTS).flat_map(|root| (G2S.start.0..G2S.end.0).map(move |g2| (root, Gfn(g2))))
    }

    /// Notes that a vCPU has flushed `scope`, and that the flush began at `now`.
    fn has_flushed(&self, vcpu: usize, scope: Scope, now: Since) {
        let is_in = |&(root, g2): &Key| {
            scope.root.is_none_or(|only| only == root) && scope.g2.is_none_or(|only| only == g2)
        };
        let mut flushed = self.flushed[vcpu].lock().unwrap();
        for (_, since) in flushed.iter_mut().filter(|(key, _)| is_in(key)) {
            *since = now.max(*since);
        }
    }

    /// The time for a flush. What was recorded before this time is stored in T.
    fn now(&self) -> Since {
        let _stored = self.storing.lock().unwrap();
        self.said.now()
    }

    /// Whether T's entry has the bits of such an access set.
    fn is_marked(&self, key: Key, access: Access) -> bool {
        let marks = K::ACCESSED | if access == Access::Write { K::DIRTY } else { 0 };
        marks & !self.vm.host().word(entry(key)).load(SeqCst) == 0
    }

    /// L1 stores an entry of T.
    fn maps(&self, key: Key, g1: Option<Gfn>, stores: bool) {
        let perms = if stores { Perms::RWX } else { Perms::RX };
        let _one_at_a_time = self.storing.lock().unwrap();
        self.said.says(told(key), g1.map(|g1| (g1, perms)));
        self.vm.host().word(entry(key)).store(g1.map_or(0, |g1| K::leaf(g1, stores)), SeqCst);
    }

    /// L1 on a CPU that runs no L2: edits of T, and broadcast flushes.
    fn edit(&self, idle: &mut Idle, lot: &mut fastrand::Rng) {
        let key = (lot.u64(..K::ROOTS), G2S.start + lot.u64(..G2S.len()));
        match lot.u8(..8) {
            0 => self.maps(key, None, false),
            1 => self.maps(key, Some(Gfn(lot.u64(DATA..PAGES))), false),
            2..5 => self.maps(key, Some(Gfn(lot.u64(DATA..PAGES))), true),
            5 => {
                let now = self.now();
                if K::broadcasts(&self.vm, idle, self.ignores) {
                    (0..self.flushed.len()).for_each(|vcpu| self.has_flushed(vcpu, Scope::default(), now));
                }
            }
            _ => {}
        }
    }

    /// A change by the host: it withdraws or protects pages, starts, takes or ends logs, ages pages, or limits
    /// table memory.
    fn change(&self, idle: &mut Idle, lot: &mut fastrand::Rng) {
        let first = lot.u64(DATA..PAGES);
        let pages = lot.u64(1..4).min(PAGES - first);
        let hvas = Span::sized(BASE + first * PAGE_SIZE, pages * PAGE_SIZE);
        let host = self.vm.host();
        match lot.u8(..16) {
            // Where table memory is short at this moment, nothing is zapped.
            0 => _ = self.vm.zap_all(idle),
            1 => _ = self.vm.memory().write_protect(idle, Span::sized(Gfn(first), pages)).settle(),
            5 => {
                let (id, logs) = (SlotId(1 + lot.u32(..2)), lot.bool());
                // Where another thread holds a harvest, the commit is refused until that harvest ends.
                let _ = self.vm.memory().commit(idle, |tx| tx.set_log_dirty(id, logs));
                if let Ok(harvest) = self.vm.memory().harvest(idle, id) {
                    harvest.commit();
                }
            }
            6 => self.vm.memory().lockless(idle).age(Span::sized(Gfn(first), pages), |_| {}),
            7 => {
                let now = self.vm.stats().table_bytes;
                self.vm.set_table_budget(idle, now - now / 4);
                self.vm.set_table_budget(idle, u64::MAX);
            }
            2..5 => {
                let _change = self.vm.invalidate(hvas, Reason::Protect).apply(idle).settle();
                (first..first + pages).for_each(|page| {
                    host.frames[page as usize].fetch_and(!WRITABLE, SeqCst);
                });
            }
            _ => {
                let why = [Reason::Migrate, Reason::Unmap, Reason::Clear][lot.usize(..3)];
                let _change = self.tells.then(|| self.vm.invalidate(hvas, why).apply(idle).settle());
                for page in first..first + pages {
                    let new = host.next.fetch_add(1, SeqCst);
                    host.frames[page as usize].store(new | WRITABLE, SeqCst);
                }
            }
        }
    }
}

/// L1 on one vCPU.
struct Runs<'w, F: Format, K> {
    cpu: Cpu<'w, F, Unique>,
    uses: Uses<'w, F, K>,
    lot: fastrand::Rng,
    /// Whether its TLB may hold entries of T.
    has_been: bool,
}

impl<'w, F: Format, K: Kind> Runs<'w, F, K> {
    fn new(world: &'w World<F, K>, id: u32, seed: u64, window: Window) -> Self {
        let random = fastrand::Rng::with_seed(seed << 8 | u64::from(id));
        Self {
            cpu: Cpu::new(world.vm.vcpu(VcpuId(id)).unwrap(), window).answering_late(seed, 30),
            uses: Uses { world, root: 0, id: id as usize, random, refused: HashMap::new(), left: USES },
            lot: fastrand::Rng::with_seed(!seed << 8 | u64::from(id)),
            has_been: false,
        }
    }

    fn is_over(&self) -> bool {
        self.uses.left == 0 || self.uses.world.over.load(SeqCst)
    }

    /// Runs L2, and handles its exit.
    fn turn(&mut self, idle: &mut Idle) {
        let Self { cpu, uses, lot, has_been } = self;
        let world = uses.world;
        if !std::mem::replace(has_been, true) {
            world.has_flushed(uses.id, Scope::default(), world.now());
        }
        uses.root = lot.u64(..K::ROOTS);
        let exit = match K::run(cpu, idle, K::table(uses.root, lot), uses) {
            Err(NestedError::NoMemory) => return,
            exit => exit.unwrap(),
        };
        match exit {
            L2Exit::ForL1(fault) => {
                let key = (uses.root, fault.access.gpa.gfn());
                // Two vCPUs share a shadow, which no processor does. A vCPU may therefore use what the other
                // read of T earlier.
                if world.flushed.len() == 1 {
                    uses.refused.insert(key, world.now());
                }
                // No flush is needed: the refused access has dropped its cached entry.
                world.maps(key, Some(Gfn(lot.u64(DATA..PAGES))), true);
            }
            L2Exit::Stopped if lot.u8(..4) == 0 => {
                let now = world.now();
                let scope = K::flushes(cpu, lot, world.ignores);
                world.has_flushed(uses.id, scope, now);
            }
            // L1 and the host change something here, however threads are scheduled.
            L2Exit::Stopped if lot.bool() => world.edit(idle, lot),
            L2Exit::Stopped => world.change(idle, lot),
            // Another thread limits table memory at this moment.
            L2Exit::Own(Exit::Failed(_, FaultError::NoMemory)) => {}
            other @ L2Exit::Own(_) => panic!("{other:?}"),
        }
    }
}

/// The threads of a world.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A thread for each vCPU, one that edits T, and one that is the host.
    Threads,
    /// One thread.
    Stepped,
}

/// The error in a world, the number of judged uses, and how often tables were taken from shadows or the VM.
type Verdict = (Option<String>, u64, u64);

/// The step that a world omits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LeftOut {
    Nothing,
    L1Flushes,
    HostEvents,
}

/// Runs one world.
fn run<F: Format, K: Builds<F>>(seed: u64, way: Way, left_out: LeftOut) -> Verdict
where
    World<F, K>: Sync,
{
    let mut idle = Idle::take().unwrap();
    let vcpus = 1 + (seed % 3).min(1) as u32;
    let world = &World::<F, K>::new(&mut idle, vcpus, left_out);
    let mut memory = vec![0_u64; 512];
    let at = NonNull::from(&mut memory[..]).cast();
    // SAFETY: the vector outlives the vCPUs, and nothing else touches it meanwhile. Nothing is stored here.
    let window = unsafe { Window::new(at, 1) };
    match way {
        Way::Stepped => {
            let mut runs: Vec<_> = (0..vcpus).map(|id| Runs::new(world, id, seed, window)).collect();
            let mut turns = fastrand::Rng::with_seed(seed);
            while runs.iter().any(|runs| !runs.is_over()) {
                // The second vCPU joins a shadow that is in use.
                let next = turns.usize(..if runs[0].uses.left > USES / 2 { 1 } else { runs.len() });
                if !runs[next].is_over() {
                    runs[next].turn(&mut idle);
                }
            }
        }
        Way::Threads => {
            drop(idle);
            on_threads(world, vcpus, seed, window);
        }
    }
    let wrong = world.wrong.lock().unwrap().take();
    (wrong, world.used.load(SeqCst), world.vm.stats().tables_reclaimed)
}

fn on_threads<F: Format, K: Kind>(world: &World<F, K>, vcpus: u32, seed: u64, window: Window)
where
    World<F, K>: Sync,
{
    thread::scope(|scope| {
        let vcpu = |id| {
            let (mut idle, mut runs) = (Idle::take().unwrap(), Runs::new(world, id, seed, window));
            while !runs.is_over() {
                runs.turn(&mut idle);
            }
        };
        let vcpus: Vec<_> = (0..vcpus).map(|id| scope.spawn(move || vcpu(id))).collect();
        let meddler = |nth: u64, work: fn(&World<F, K>, &mut Idle, &mut fastrand::Rng)| {
            scope.spawn(move || {
                let (mut idle, mut lot) = (Idle::take().unwrap(), fastrand::Rng::with_seed(seed << 4 | nth));
                while !world.over.load(SeqCst) {
                    work(world, &mut idle, &mut lot);
                    if lot.bool() {
                        thread::yield_now();
                    }
                }
            })
        };
        meddler(1, World::edit);
        meddler(2, World::change);
        for vcpu in vcpus {
            vcpu.join().unwrap();
        }
        world.over.store(true, SeqCst);
    });
}

/// Checks four worlds in each way, or more.
fn are_right(of: [fn(u64, Way, LeftOut) -> Verdict; 2]) {
    for way in [Way::Stepped, Way::Threads] {
        for (seed, world) in (0..tries(4)).zip(of.into_iter().cycle()) {
            let (wrong, used, taken) = world(seed, way, LeftOut::Nothing);
            assert_eq!(wrong, None, "world {seed}");
            assert!(used >= USES && taken > 0, "{used}, {taken}");
        }
    }
}

#[test]
fn a_vcpu_uses_what_t_said_since_its_flush_on_what_the_host_has_now() {
    are_right([run::<Npt4, Ept>, run::<Ept4, Ept>]);
}

#[test]
fn a_vcpu_uses_what_its_page_tables_said_since_its_flush_on_what_the_host_has_now() {
    are_right([run::<X64, Paging>, run::<Npt5, Paging>]);
}

/// Whether one of 30 worlds finds it.
fn is_found(world: fn(u64, Way, LeftOut) -> Verdict, left_out: LeftOut) -> bool {
    (0..30).any(|seed| world(seed, Way::Stepped, left_out).0.is_some())
}

#[test]
fn negative_control_a_flush_of_l1_that_is_ignored_is_found() {
    assert!(is_found(run::<Npt4, Ept>, LeftOut::L1Flushes));
    assert!(is_found(run::<X64, Paging>, LeftOut::L1Flushes));
}

#[test]
fn negative_control_a_host_that_tells_nothing_is_found() {
    assert!(is_found(run::<Npt4, Ept>, LeftOut::HostEvents));
    assert!(is_found(run::<X64, Paging>, LeftOut::HostEvents));
}
