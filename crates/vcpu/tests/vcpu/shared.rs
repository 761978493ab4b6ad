//! More vCPUs than processors. Each turn of a vCPU is on a random processor, where its cache entries stay.
//! Meanwhile the host moves the pages of every VM. A vCPU therefore makes flushes on one processor while
//! another still holds the flushed entries, and later returns to it.
//!
//! The same on processors that broadcast flushes: these kick no vCPU, except where a root is replaced.
//!
//! Each world is a fixed amount of work. `SLAT_SOAK_SECONDS` adds worlds with other seeds. Negative controls:
//! processors that all have the same number, and broadcasts that do not complete.

use crate::tries::tries;
use slat::table::formats::Npt4;
use slat::table::{Own, TablesOf};
use slat::*;
use slat_mm::{AddressSpace, Arena, Backing, HostView, Place, Prot};
use slat_vcpu::guest::{Findings, Pattern};
use slat_vcpu::{Cpu, Exit, Processor, Window};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const HVA: Hva = Hva(1 << 40);
const VMS: u32 = 2;
const VCPUS: u32 = 3;
/// Pages of each vCPU.
const PAGES: u64 = 24;
/// Turns of each vCPU, and pages that move, at least.
const TURNS: u64 = 100;
const MOVES: u64 = 50;

/// The way in which flushes reach processors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flushes {
    /// Through kicked vCPUs.
    Kicks,
    /// On all processors, before the broadcast returns.
    Broadcast,
    /// A mistake: the first processor is flushed at once, the others only by the next broadcast.
    Unfinished,
}

/// The host of one VM, and the processors it can flush.
struct BroadcastHost {
    view: HostView,
    vm: u32,
    processors: Arc<[Processor]>,
    flushes: Flushes,
    /// The flush that the last broadcast left to do.
    unfinished: Mutex<Option<Span<Gfn>>>,
    kicks: AtomicU64,
    broadcasts: AtomicU64,
}

// SAFETY: passed on to a host that keeps the contract.
unsafe impl TableMemory for BroadcastHost {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        self.view.lend(pages)
    }

    unsafe fn take_back(&self, first: NonNull<u8>, pfn: Pfn, pages: usize) {
        // SAFETY: required of the caller.
        unsafe { self.view.take_back(first, pfn, pages) }
    }

    fn at(&self, pfn: Pfn) -> NonNull<u8> {
        self.view.at(pfn)
    }
}

impl Host for BroadcastHost {
    fn tables() -> impl TablesOf<Self> {
        Own
    }

    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        self.view.lookup(hva, access)
    }

    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        self.view.resolve(idle, hva, access)
    }

    fn kick(&self, _: VcpuId) {
        self.kicks.fetch_add(1, Relaxed);
    }

    fn broadcast_flush(&self, gfns: Span<Gfn>) -> bool {
        let forget = |processors: &[Processor], gfns| {
            for processor in processors {
                processor.forget(self.vm, gfns);
            }
        };
        match self.flushes {
            Flushes::Kicks => return false,
            Flushes::Broadcast => forget(&self.processors, gfns),
            Flushes::Unfinished => {
                forget(&self.processors[..1], gfns);
                if let Some(before) = self.unfinished.lock().unwrap().replace(gfns) {
                    forget(&self.processors[1..], before);
                }
            }
        }
        self.broadcasts.fetch_add(1, Relaxed);
        true
    }
}

/// One VM.
struct Machine {
    arena: Arc<Arena>,
    space: Arc<AddressSpace>,
    vm: Arc<Vm<Npt4, BroadcastHost>>,
}

impl Machine {
    fn new(vm: u32, processors: &Arc<[Processor]>, flushes: Flushes) -> Self {
        let arena = Arena::builder().limit(16 << 20).poison(0xdd).build().unwrap();
        let space = AddressSpace::builder(&arena).build().unwrap();
        let pages = PAGES * u64::from(VCPUS);
        space.mmap(Place::Fixed(HVA), pages * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
        let host = BroadcastHost {
            view: HostView::new(&space),
            vm,
            processors: processors.clone(),
            flushes,
            unfinished: Mutex::default(),
            kicks: AtomicU64::new(0),
            broadcasts: AtomicU64::new(0),
        };
        let vm = Arc::new(Vm::<Npt4, _>::builder(host).vcpus(VCPUS).build().unwrap());
        space.register(&vm);
        let slot = Slot::new(SlotId(0), Gfn(0), pages, HVA);
        vm.memory().commit(&mut Idle::take().unwrap(), |tx| tx.create(slot)).unwrap();
        Self { arena, space, vm }
    }

    fn cpu(&self, vm: u32, number: u32) -> Cpu<'_, Npt4, BroadcastHost> {
        // SAFETY: the arena's mapping, which outlives the vCPU; frame numbers start after a huge page.
        let window = unsafe { Window::new(self.arena.base(), self.arena.stats().frames + Level::M2.pages()) };
        Cpu::new(self.vm.vcpu(VcpuId(number)).unwrap(), window).tagged(vm)
    }
}

/// A world. `ids` are the numbers of the processors for the engine. With `zaps`, new roots unmap everything
/// repeatedly.
#[derive(Clone, Copy)]
struct World {
    seed: u64,
    ids: [u64; 2],
    flushes: Flushes,
    zaps: bool,
}

/// The outcome of a world.
#[derive(Default, Debug)]
struct Outcome {
    findings: Findings,
    moved: u64,
    kicks: u64,
    broadcasts: u64,
}

/// Runs a world. It ends early when corruption shows.
fn run(World { seed, ids, flushes, zaps }: World) -> Outcome {
    let processors: Arc<[Processor]> = ids.map(|id| Processor::new(CpuId(id))).into();
    let machines: Vec<_> = (0..VMS).map(|vm| Machine::new(vm, &processors, flushes)).collect();
    let (at_work, moved) = (AtomicU64::new(u64::from(VMS * VCPUS)), AtomicU64::new(0));
    let mut seen = Outcome::default();
    thread::scope(|scope| {
        let (processors, machines, at_work, moved) = (&processors, &machines, &at_work, &moved);
        let vcpus = (0..VMS * VCPUS).map(|number| {
            scope.spawn(move || {
                let (vm, number) = (number / VCPUS, number % VCPUS);
                let mut idle = Idle::take().unwrap();
                let mut cpu = machines[vm as usize].cpu(vm, number);
                let own = Span::sized(Gfn(u64::from(number) * PAGES), PAGES);
                let mut random = fastrand::Rng::with_seed(seed << 8 | u64::from(vm << 4 | number));
                let mut guest = Pattern::new(own, random.u64(..), u64::MAX);
                let mut turns = 0;
                while turns < TURNS || moved.load(Relaxed) < MOVES {
                    turns += 1;
                    let processor = &processors[random.usize(..processors.len())];
                    let exit: Option<Exit> = cpu.run_on(&mut idle, processor, &mut guest, random.u64(1..60));
                    assert_eq!(exit, None);
                    if guest.findings.corrupt > 0 {
                        break;
                    }
                }
                at_work.fetch_sub(1, Relaxed);
                guest.findings
            })
        });
        let vcpus: Vec<_> = vcpus.collect();
        for machine in machines {
            scope.spawn(move || {
                let (mut idle, mut random) = (Idle::take().unwrap(), fastrand::Rng::with_seed(seed));
                while at_work.load(Relaxed) > 0 {
                    let page = HVA + random.u64(..PAGES * u64::from(VCPUS)) * PAGE_SIZE;
                    let pages = machine.space.migrate(&mut idle, Span::sized(page, PAGE_SIZE)).unwrap();
                    moved.fetch_add(pages, Relaxed);
                    thread::yield_now();
                }
            });
            scope.spawn(move || {
                let mut idle = Idle::take().unwrap();
                while zaps && at_work.load(Relaxed) > 0 {
                    machine.vm.zap_all(&mut idle).unwrap();
                    thread::yield_now();
                }
            });
        }
        for vcpu in vcpus {
            seen.findings = seen.findings.with(vcpu.join().unwrap());
        }
    });
    for machine in machines {
        let host = machine.vm.host();
        seen.kicks += host.kicks.load(Relaxed);
        seen.broadcasts += host.broadcasts.load(Relaxed);
    }
    Outcome { moved: moved.into_inner(), ..seen }
}

fn world(seed: u64) -> World {
    World { seed, ids: [0, 1], flushes: Flushes::Kicks, zaps: false }
}

/// Runs three worlds like this one, or as many as there is time for. All must be right.
fn are_right(like: World) -> Outcome {
    let seconds = std::env::var("SLAT_SOAK_SECONDS").ok().map(|seconds| seconds.parse().expect("seconds"));
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let (mut worlds, mut sum) = (0, Outcome::default());
    while worlds < tries(3) || end.is_some_and(|end| Instant::now() < end) {
        worlds += 1;
        let seen = run(World { seed: worlds, ..like });
        assert_eq!(seen.findings.corrupt, 0, "world {worlds}: {:?}", seen.findings.first);
        assert!(seen.findings.verified > 0 && seen.moved >= MOVES);
        sum = Outcome {
            findings: sum.findings.with(seen.findings),
            moved: sum.moved + seen.moved,
            kicks: sum.kicks + seen.kicks,
            broadcasts: sum.broadcasts + seen.broadcasts,
        };
    }
    let Outcome { findings, moved, kicks, broadcasts } = &sum;
    println!(
        "{worlds} worlds, {} loads verified, {moved} pages moved, {kicks} kicks, {broadcasts} broadcasts",
        findings.verified
    );
    sum
}

/// The first wrong world among a hundred worlds like this one.
fn first_wrong(like: World) -> Option<u64> {
    let began = Instant::now();
    let found = (1..=100).find(|&seed| run(World { seed, ..like }).findings.corrupt > 0);
    println!("found in world {found:?}, after {:?}", began.elapsed());
    found
}

#[test]
fn vcpus_that_move_between_processors_read_what_they_wrote() {
    let seen = are_right(world(1));
    assert_eq!(seen.broadcasts, 0);
}

#[test]
fn negative_control_processors_of_one_number_are_found() {
    assert!(first_wrong(World { ids: [7, 7], ..world(1) }).is_some());
}

#[test]
fn broadcast_flushes_kick_no_vcpu() {
    let seen = are_right(World { flushes: Flushes::Broadcast, ..world(1) });
    assert!(seen.kicks == 0 && seen.broadcasts > 0, "{seen:?}");
}

#[test]
fn beside_roots_that_are_replaced_broadcast_flushes_lose_nothing() {
    let seen = are_right(World { flushes: Flushes::Broadcast, zaps: true, ..world(1) });
    assert!(seen.broadcasts > 0, "{seen:?}");
}

#[test]
fn negative_control_a_broadcast_that_does_not_complete_is_found() {
    assert!(first_wrong(World { flushes: Flushes::Unfinished, ..world(1) }).is_some());
}
