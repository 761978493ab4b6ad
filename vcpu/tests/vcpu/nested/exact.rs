//! Each use of a translation is judged: it must be `{ T(t)(g2) : t since that vCPU's last flush } ∘ { host, now }` ([`Said`]).
//!
//! A world is of one [`Kind`]: T is a hypervisor's EPT, or the page tables of a guest without a second stage. One world in three
//! has one vCPU, the others two. Table memory is short now and then, so tables of shadows go while both run on them. No frame of the host is
//! used twice, so a translation that leads to one that was taken back is seen, whatever it holds.

use super::kinds::{Ept, Kind, Paging, Scope};
use slat::nested::NestedError;
use slat::table::formats::{Ept4, Npt4, Npt5, X64};
use slat::table::{TableMemory, Word};
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
/// L1's tables are in the frames before; from here on is what L2 may have.
const DATA: u64 = 24;
const PAGES: u64 = 48;
/// L2's frames that are used: across two leaf tables of T.
pub const G2S: Span<Gfn> = Span::new(Gfn(508), Gfn(516));
/// Uses by each vCPU.
const USES: u64 = 6_000;
const WRITABLE: u64 = 1 << 63;

/// L1's memory, and what is behind it.
pub struct Unique {
    words: Vec<AtomicU64>,
    frames: Vec<AtomicU64>,
    next: AtomicU64,
}

// SAFETY: the defaults keep the contract.
unsafe impl TableMemory for Unique {}

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
    /// What is said last is what T holds.
    storing: Mutex<()>,
    /// Since when each vCPU may not go by what T said, by its own flush or by one for all.
    flushed: Vec<Mutex<HashMap<Key, Since>>>,
    over: AtomicBool,
    wrong: Mutex<Option<String>>,
    used: AtomicU64,
    /// L1's flushes do not come to the engine.
    ignores: bool,
    /// TLBs forget nothing: so no table goes that they have links to.
    sabotaged: bool,
    kind: PhantomData<K>,
}

/// A root of T, and a frame of L2.
type Key = (u64, Gfn);

/// T: frame 8 links 9, 9 links 10, and 10 the leaf tables 11 and 12. The next root is in the frame after.
pub fn root_of(root: u64) -> u64 {
    8 + 5 * root
}

fn entry((root, g2): Key) -> Hva {
    BASE + (root_of(root) + 3 + g2.0 / 512) * PAGE_SIZE + g2.0 % 512 * 8
}

/// By what T's words are told apart.
fn told((root, g2): Key) -> Gfn {
    Gfn(root << 40 | g2.0)
}

/// L2, which looks where its pages are.
pub struct Uses<'w, F: Format, K> {
    world: &'w World<F, K>,
    root: u64,
    id: usize,
    random: fastrand::Rng,
    /// Where T has refused an access of this vCPU, what it said before does not count.
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
        let is_it = |&(g1, perms): &(Gfn, Perms)| {
            let now = world.vm.host().now(g1);
            now.pfn == pfn && perms.allows(access) && (now.writable || access != Access::Write)
        };
        if !allowed.iter().any(is_it) {
            let now: Vec<_> =
                allowed.iter().map(|&(g1, perms)| (g1, perms, world.vm.host().now(g1))).collect();
            let what = format!("vCPU {} {access:?} {g2:?}: {pfn:?}, allowed {now:?}", self.id);
            world.wrong.lock().unwrap().get_or_insert(what);
            world.over.store(true, SeqCst);
        }
        world.used.fetch_add(1, SeqCst);
        // Leave now and then: L1 has something to do.
        Ok(if self.random.u8(..32) == 0 { Step::Stop } else { Step::Next })
    }
}

impl<F: Format, K: Kind> World<F, K> {
    fn new(idle: &mut Idle, vcpus: u32, (ignores, sabotaged): (bool, bool)) -> Self {
        let host = Unique {
            words: (0..PAGES * 512).map(|_| AtomicU64::new(0)).collect(),
            frames: (0..PAGES).map(|page| AtomicU64::new(page | WRITABLE)).collect(),
            next: AtomicU64::new(PAGES),
        };
        let builder = K::builder::<F>(host).vcpus(vcpus);
        let builder = if sabotaged { builder.sabotage_flushes() } else { builder };
        let vm = builder.build().unwrap();
        for (id, first, end) in [(0, 0, DATA), (1, DATA, DATA + 12), (2, DATA + 12, PAGES)] {
            let slot = Slot::new(SlotId(id), Gfn(first), end - first, BASE + first * PAGE_SIZE);
            vm.slots().commit(idle, |tx| tx.create(slot)).unwrap();
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
            sabotaged,
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

    /// A vCPU has flushed what is in `scope`, and began to when it was `now`.
    fn has_flushed(&self, vcpu: usize, scope: Scope, now: Since) {
        let is_in = |&(root, g2): &Key| {
            scope.root.is_none_or(|only| only == root) && scope.g2.is_none_or(|only| only == g2)
        };
        let mut flushed = self.flushed[vcpu].lock().unwrap();
        for (_, since) in flushed.iter_mut().filter(|(key, _)| is_in(key)) {
            *since = now.max(*since);
        }
    }

    /// L1 stores an entry of T.
    fn maps(&self, key: Key, g1: Option<Gfn>, stores: bool) {
        let perms = if stores { Perms::RWX } else { Perms::RX };
        let _one_at_a_time = self.storing.lock().unwrap();
        self.said.says(told(key), g1.map(|g1| (g1, perms)));
        self.vm.host().word(entry(key)).store(g1.map_or(0, |g1| K::leaf(g1, stores)), SeqCst);
    }

    /// L1 on one vCPU: it runs L2, and deals with its exits.
    fn run(&self, id: u32, seed: u64, window: Window) {
        let mut idle = Idle::take().unwrap();
        let mut cpu = Cpu::new(self.vm.vcpu(VcpuId(id)).unwrap(), window).answering_late(seed, 30);
        let random = fastrand::Rng::with_seed(seed << 8 | u64::from(id));
        let mut lot = fastrand::Rng::with_seed(!seed << 8 | u64::from(id));
        let mut uses =
            Uses { world: self, root: 0, id: id as usize, random, refused: HashMap::new(), left: USES };
        while uses.left > 0 && !self.over.load(SeqCst) {
            uses.root = lot.u64(..K::ROOTS);
            let exit = match K::run(&mut cpu, &mut idle, K::table(uses.root, &mut lot), &mut uses) {
                Err(NestedError::NoMemory) => continue,
                exit => exit.unwrap(),
            };
            match exit {
                L2Exit::ForL1(fault) => {
                    let key = (uses.root, fault.access.gpa.gfn());
                    // Two vCPUs share a shadow, which no processor does: what another one has read of T before may come later.
                    if self.flushed.len() == 1 {
                        uses.refused.insert(key, self.said.now());
                    }
                    // No flush: the access that was refused has dropped what it hit.
                    self.maps(key, Some(Gfn(lot.u64(DATA..PAGES))), true);
                }
                L2Exit::Stopped if lot.u8(..4) == 0 => {
                    let now = self.said.now();
                    let scope = K::flushes(&mut cpu, &mut lot, self.ignores);
                    self.has_flushed(id as usize, scope, now);
                }
                // However threads are scheduled, something changes below.
                L2Exit::Stopped if lot.bool() => self.edit(&mut idle, &mut lot),
                L2Exit::Stopped => self.change(&mut idle, &mut lot),
                // Another thread has table memory short at this moment.
                L2Exit::Own(Exit::Failed(_, FaultError::NoMemory)) => {}
                other @ L2Exit::Own(_) => panic!("{other:?}"),
            }
        }
    }

    /// L1 on a CPU that runs no L2: edits of T, and flushes for all.
    fn edit(&self, idle: &mut Idle, lot: &mut fastrand::Rng) {
        let key = (lot.u64(..K::ROOTS), G2S.start + lot.u64(..G2S.len()));
        match lot.u8(..8) {
            0 => self.maps(key, None, false),
            1 => self.maps(key, Some(Gfn(lot.u64(DATA..PAGES))), false),
            2..5 => self.maps(key, Some(Gfn(lot.u64(DATA..PAGES))), true),
            5 => {
                let now = self.said.now();
                if K::broadcasts(&self.vm, idle, self.ignores) {
                    (0..self.flushed.len()).for_each(|vcpu| self.has_flushed(vcpu, Scope::default(), now));
                }
            }
            _ => {}
        }
    }

    /// The host takes pages away, or protects them; logs begin, are taken, or end; pages are aged; table memory is short.
    fn change(&self, idle: &mut Idle, lot: &mut fastrand::Rng) {
        let first = lot.u64(DATA..PAGES);
        let pages = lot.u64(1..4).min(PAGES - first);
        let hvas = Span::sized(BASE + first * PAGE_SIZE, pages * PAGE_SIZE);
        let host = self.vm.host();
        match lot.u8(..16) {
            // Where table memory is short at this moment, nothing goes.
            0 => _ = self.vm.zap_all(idle),
            1 => _ = self.vm.write_protect(idle, Span::sized(Gfn(first), pages)).settle(),
            5 => {
                let (id, logs) = (SlotId(1 + lot.u32(..2)), lot.bool());
                // Where another thread has a harvest in hand, that goes first.
                let _ = self.vm.slots().commit(idle, |tx| tx.set_log_dirty(id, logs));
                if let Ok(harvest) = self.vm.slots().harvest(idle, id) {
                    harvest.commit();
                }
            }
            6 => self.vm.lockless(idle).age(Span::sized(Gfn(first), pages), |_| {}),
            7 if !self.sabotaged => {
                let now = self.vm.stats().table_bytes;
                self.vm.set_table_budget(idle, now - now / 4);
                self.vm.set_table_budget(idle, u64::MAX);
            }
            2..5 => {
                let mut change = self.vm.invalidate(hvas, Why::Protect);
                change.apply(idle).settle();
                (first..first + pages).for_each(|page| {
                    host.frames[page as usize].fetch_and(!WRITABLE, SeqCst);
                });
            }
            _ => {
                let mut change =
                    self.vm.invalidate(hvas, [Why::Migrate, Why::Unmap, Why::Clear][lot.usize(..3)]);
                change.apply(idle).settle();
                for page in first..first + pages {
                    let new = host.next.fetch_add(1, SeqCst);
                    host.frames[page as usize].store(new | WRITABLE, SeqCst);
                }
            }
        }
    }
}

/// What was wrong in a world; how many uses were judged; and how many times tables were taken from shadows, or from the VM.
type Verdict = (Option<String>, u64, u64);

/// One world.
fn run<F: Format, K: Kind>(seed: u64, ignores: bool, sabotaged: bool) -> Verdict
where
    World<F, K>: Sync,
{
    let mut idle = Idle::take().unwrap();
    let vcpus = 1 + (seed % 3).min(1) as u32;
    let world = &World::<F, K>::new(&mut idle, vcpus, (ignores, sabotaged));
    drop(idle);
    let mut memory = vec![0_u64; 512];
    let at = NonNull::from(&mut memory[..]).cast();
    // SAFETY: the vector outlives the vCPUs and is not touched meanwhile; nothing is stored here.
    let window = unsafe { Window::new(at, 1) };
    thread::scope(|scope| {
        let vcpus: Vec<_> = (0..vcpus).map(|id| scope.spawn(move || world.run(id, seed, window))).collect();
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
    let wrong = world.wrong.lock().unwrap().take();
    (wrong, world.used.load(SeqCst), world.vm.stats().tables_reclaimed)
}

/// Whether world `seed` is right, of either kind.
#[cfg(seeded)]
pub fn is_right(seed: u64) -> bool {
    run::<Npt4, Ept>(seed, false, false).0.is_none() && run::<X64, Paging>(seed, false, false).0.is_none()
}

/// Four worlds are right.
fn are_right(of: [fn(u64, bool, bool) -> Verdict; 2]) {
    for (seed, world) in of.into_iter().cycle().take(4).enumerate() {
        let (wrong, used, taken) = world(seed as u64, false, false);
        assert_eq!(wrong, None, "world {seed}");
        assert!(used >= USES && taken > 0, "{used}, {taken}");
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

/// Whether it is found in any of some worlds.
fn is_found(world: fn(u64, bool, bool) -> Verdict, ignores: bool, sabotaged: bool) -> bool {
    (0..30).any(|seed| world(seed, ignores, sabotaged).0.is_some())
}

#[test]
fn negative_control_a_flush_of_l1_that_is_ignored_is_found() {
    assert!(is_found(run::<Npt4, Ept>, true, false));
    assert!(is_found(run::<X64, Paging>, true, false));
}

#[test]
fn negative_control_a_flush_of_the_host_that_is_left_out_is_found() {
    assert!(is_found(run::<Npt4, Ept>, false, true));
    assert!(is_found(run::<X64, Paging>, false, true));
}
