//! More vCPUs than processors: each turn of a vCPU is on a processor drawn by seed, and what it cached stays there. The
//! host moves the pages of every VM meanwhile. So a vCPU carries out flushes on one processor while another one still
//! holds what they covered, and comes back to it.
//!
//! Each world is a fixed amount of work; `SLAT_SOAK_SECONDS` makes worlds with other seeds follow. Negative controls:
//! the mistake `processor-believed` (`seeded`), and processors that all say the same number.

use slat::table::formats::Npt4;
use slat::*;
use slat_mm::{AddressSpace, Arena, Backing, HostView, Place, Prot};
use slat_vcpu::guest::{Findings, Pattern};
use slat_vcpu::{Cpu, Exit, Processor, Window};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const HVA: Hva = Hva(1 << 40);
const VMS: u32 = 2;
const VCPUS: u32 = 3;
const PROCESSORS: u64 = 2;
/// Pages of each vCPU.
const PAGES: u64 = 24;
/// Turns of each vCPU, and pages that are moved, at least.
const TURNS: u64 = 100;
const MOVES: u64 = 50;

/// One VM.
struct Machine {
    arena: Arc<Arena>,
    space: Arc<AddressSpace>,
    vm: Arc<Vm<Npt4, HostView>>,
}

impl Machine {
    fn new() -> Self {
        let arena = Arena::builder().limit(16 << 20).poison(0xdd).build().unwrap();
        let space = AddressSpace::builder(&arena).build().unwrap();
        let pages = PAGES * u64::from(VCPUS);
        space.mmap(Place::Fixed(HVA), pages * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
        let vm = Arc::new(Vm::<Npt4, _>::builder(HostView::new(&space)).vcpus(VCPUS).build().unwrap());
        space.register(&vm);
        let slot = Slot::new(SlotId(0), Gfn(0), pages, HVA);
        vm.slots().commit(&mut Idle::take().unwrap(), |tx| tx.create(slot)).unwrap();
        Self { arena, space, vm }
    }

    fn cpu(&self, vm: u32, number: u32) -> Cpu<'_, Npt4, HostView> {
        // SAFETY: the arena's mapping, which outlives the vCPU; frame numbers start after a huge page.
        let window = unsafe { Window::new(self.arena.base(), self.arena.stats().frames + Level::M2.pages()) };
        Cpu::new(self.vm.vcpu(VcpuId(number)).unwrap(), window).tagged(vm)
    }
}

/// What the guests of world `seed` have found, on processors with these numbers, and how many pages were moved under them.
/// Ends early when corruption shows.
fn run(seed: u64, ids: [u64; PROCESSORS as usize]) -> (Findings, u64) {
    let processors = ids.map(|id| Processor::new(CpuId(id)));
    let machines: Vec<Machine> = (0..VMS).map(|_| Machine::new()).collect();
    let (at_work, moved) = (AtomicU64::new(u64::from(VMS * VCPUS)), AtomicU64::new(0));
    let mut findings = Findings::default();
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
        }
        for vcpu in vcpus {
            findings = findings.with(vcpu.join().unwrap());
        }
    });
    (findings, moved.into_inner())
}

/// Whether world `seed` is right.
#[cfg(seeded)]
pub fn is_right(seed: u64) -> bool {
    run(seed, [0, 1]).0.corrupt == 0
}

#[test]
fn vcpus_that_move_between_processors_read_what_they_wrote() {
    let seconds = std::env::var("SLAT_SOAK_SECONDS").ok().map(|seconds| seconds.parse().expect("seconds"));
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let (mut worlds, mut verified, mut moved) = (0, 0, 0);
    loop {
        worlds += 1;
        let (findings, pages) = run(worlds, [0, 1]);
        assert_eq!(findings.corrupt, 0, "world {worlds}: {:?}", findings.first);
        (verified, moved) = (verified + findings.verified, moved + pages);
        if worlds >= 3 && end.is_none_or(|end| Instant::now() >= end) {
            break;
        }
    }
    println!("{worlds} worlds, {verified} loads verified, {moved} pages moved");
    assert!(verified > 0 && moved >= worlds * MOVES);
}

#[test]
fn negative_control_on_processors_of_one_number_they_do_not() {
    let began = Instant::now();
    let found = (1..100).find(|&seed| run(seed, [7, 7]).0.corrupt > 0);
    println!("found in world {found:?}, after {:?}", began.elapsed());
    assert!(found.is_some());
}
