//! Worlds of fixed work. vCPUs run patterns in L2, and L1 edits its tables at random. A thread of the host
//! moves pages, takes snapshots, protects, zaps and harvests. `SLAT_SOAK_SECONDS` adds worlds with other seeds.

use crate::thorough::thorough;
use slat::table::formats::{
    Arm64L40, Arm64L48, Arm64NoAd, Ept4, Ept4NoAd, Ept5, Npt4, Npt5, Pae, Sv39x4, Sv39x4NoAd, Sv57x4,
};
use slat::*;
use slat_mm::{AddressSpace, Arena, Backing, HostView, Place, Prot};
use slat_vcpu::guest::{Findings, Pattern};
use slat_vcpu::nested::{Ended, L1, L1Counts, L1Settings, L1Vcpu, Mistake, Nest, Platform};
use slat_vcpu::{Cpu, Exit, Window};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const HVA: Hva = Hva(1 << 40);
/// L1's memory, which it gets in regions.
const REGION: u64 = 8 << 20;
const REGIONS: u64 = 6;
const VCPUS: u32 = 2;
/// Pages of each vCPU's L2. They begin in one leaf table and end in the next.
const PAGES: u64 = 40;
/// Accesses of each vCPU: at night or where something is omitted, and otherwise. Then the fewest pages that the
/// host moves.
const ACCESSES: [u64; 2] = [30_000, 8_000];
const MOVES: u64 = 20;

/// The step that a world omits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LeftOut {
    Nothing,
    /// Flushes of the host.
    HostFlushes,
    /// L1's flushes, which the engine ignores.
    L1Flushes,
    /// L1's flushes, which L1 omits.
    L1sOwn,
    /// Flushes of L2's tag.
    L2Tag,
}

struct Machine<F: Format> {
    arena: Arc<Arena>,
    space: Arc<AddressSpace>,
    vm: Arc<Vm<F, HostView>>,
    given: AtomicU64,
}

/// One vCPU's access to the machine.
struct VcpuPlatform<'m, F: Format> {
    machine: &'m Machine<F>,
}

impl<F: Format> Platform for VcpuPlatform<'_, F> {
    type Error = String;

    fn exit(&mut self, _: &mut Idle, exit: Exit) -> Result<(), String> {
        Err(format!("{exit:?}"))
    }

    fn memory(&mut self, _: &mut Idle) -> Result<Span<Gfn>, String> {
        let number = self.machine.given.fetch_add(1, Relaxed);
        if number == REGIONS {
            return Err("L1 needs more memory than there is".into());
        }
        let pages = REGION / PAGE_SIZE;
        Ok(Span::sized(Gfn(number * pages), pages))
    }

    fn no_memory(&mut self) -> String {
        "no memory for shadows".into()
    }
}

impl<F: Format> Machine<F> {
    fn new(idle: &mut Idle, left_out: LeftOut) -> Self {
        let arena = Arena::builder().limit(64 << 20).poison(0xee).build().unwrap();
        let space = AddressSpace::builder(&arena).build().unwrap();
        space.mmap(Place::Fixed(HVA), REGIONS * REGION, Prot::ReadWrite, Backing::Anonymous).unwrap();
        // A host that says that a flush was broadcast, and does none.
        let host = HostView::new(&space).with_broadcast(move |_| left_out == LeftOut::HostFlushes);
        let vm = Arc::new(Vm::<F, _>::builder(host).vcpus(VCPUS).build().unwrap());
        space.register(&vm);
        // Two slots, so that the host's changes and logs meet their border.
        let half = REGIONS * REGION / PAGE_SIZE / 2;
        for (id, first) in [(0, 0), (1, half)] {
            let slot = Slot::new(SlotId(id), Gfn(first), half, HVA + first * PAGE_SIZE).log_dirty();
            let slot = if id == 0 { slot } else { Slot { log_dirty: false, ..slot } };
            vm.memory().commit(idle, |tx| tx.create(slot)).unwrap();
        }
        Self { arena, space, vm, given: AtomicU64::new(0) }
    }

    fn window(&self) -> Window {
        // SAFETY: the arena's mapping, which outlives the vCPU; frame numbers start after a huge page.
        unsafe { Window::new(self.arena.base(), self.arena.stats().frames + Level::M2.pages()) }
    }

    /// One change by the host. Returns the number of moved pages.
    fn change(&self, idle: &mut Idle, random: &mut fastrand::Rng, left_out: LeftOut) -> u64 {
        let given = self.given.load(Relaxed).min(REGIONS) * REGION / PAGE_SIZE;
        let page = random.u64(..given.max(1));
        // Most of the memory that L1 uses is at the beginning.
        let page = if random.bool() { page % 128 } else { page };
        let hvas = Span::sized(HVA + page * PAGE_SIZE, PAGE_SIZE);
        // A snapshot only where nothing is omitted: a page that vCPUs do not lose must not be shared with one.
        match random.u8(..32) {
            0 if left_out == LeftOut::Nothing => drop(self.space.fork(idle)),
            1 => self.vm.zap_all(idle).unwrap(),
            2 => _ = self.vm.memory().write_protect(idle, Span::sized(Gfn(page), 8)).settle(),
            3 => {
                if let Ok(harvest) = self.vm.memory().harvest(idle, SlotId(0)) {
                    harvest.commit();
                }
            }
            4 => self.vm.memory().lockless(idle).age(Span::sized(Gfn(0), 256), |_| {}),
            5 => _ = self.vm.invalidate(hvas, Reason::Clear).apply(idle).settle(),
            _ => return self.space.migrate(idle, hvas).unwrap(),
        }
        0
    }
}

/// The outcome of a world.
#[derive(Default, Debug)]
struct Outcome {
    findings: Findings,
    moved: u64,
    l1: L1Counts,
}

impl Outcome {
    fn mistakes(&self) -> u64 {
        self.findings.corrupt + self.l1.mistakes()
    }
}

/// A vCPU at work, also where it panics. The host runs while there is one.
struct AtWork<'w>(&'w AtomicU64);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Runs a world. It ends early on an error.
fn run<F: Nest>(seed: u64, left_out: LeftOut) -> Outcome {
    let machine = &Machine::<F>::new(&mut Idle::take().unwrap(), left_out);
    let mistake = match left_out {
        LeftOut::L1Flushes => Some(Mistake::FlushesIgnored),
        LeftOut::L1sOwn => Some(Mistake::FlushesLeftOut),
        _ => None,
    };
    let settings = L1Settings { steps: 150, seed, late: 60, large: true, mistake };
    let l1 = &L1::<F>::new(VCPUS, settings);
    let (at_work, moved, wrong) = (&AtomicU64::new(VCPUS.into()), &AtomicU64::new(0), &AtomicU64::new(0));
    let accesses =
        if left_out == LeftOut::Nothing { thorough(ACCESSES[0], ACCESSES[1]) } else { ACCESSES[0] };
    let mut seen = Outcome::default();
    thread::scope(|scope| {
        let vcpus: Vec<_> = (0..VCPUS)
            .map(|id| {
                scope.spawn(move || {
                    let (at_work, mut idle) = (AtWork(at_work), Idle::take().unwrap());
                    let cpu = Cpu::new(machine.vm.vcpu(VcpuId(id)).unwrap(), machine.window());
                    let cpu = cpu.answering_late(seed << 8 | u64::from(id), 40);
                    let cpu = if left_out == LeftOut::L2Tag { cpu.keeping_l2() } else { cpu };
                    let mut vcpu = L1Vcpu::new(l1, id, cpu);
                    let own = Span::sized(Gfn(512 * u64::from(id) + 500), PAGES);
                    let mut guest = Pattern::new(own, seed << 8 | u64::from(id), 500);
                    let (mut done, mut platform) = (0, VcpuPlatform { machine });
                    while (done < accesses || moved.load(Relaxed) < MOVES) && wrong.load(Relaxed) == 0 {
                        done += 500;
                        let ended = vcpu.run(&mut idle, &mut platform, &mut guest);
                        let is_right = match ended {
                            Ok(ended) => ended == Ended::Stopped,
                            Err(error) if left_out == LeftOut::Nothing => panic!("{error}"),
                            Err(_) => false,
                        };
                        if !is_right || guest.findings.corrupt > 0 || l1.counts().mistakes() > 0 {
                            wrong.fetch_add(1, Relaxed);
                        }
                    }
                    drop(at_work);
                    if left_out == LeftOut::Nothing {
                        vcpu.check_all(&mut idle, &mut platform).unwrap();
                    }
                    guest.findings
                })
            })
            .collect();
        scope.spawn(move || {
            let (mut idle, mut random) = (Idle::take().unwrap(), fastrand::Rng::with_seed(seed));
            while at_work.load(Relaxed) > 0 {
                moved.fetch_add(machine.change(&mut idle, &mut random, left_out), Relaxed);
                thread::sleep(Duration::from_micros(random.u64(..200)));
            }
        });
        for vcpu in vcpus {
            seen.findings = seen.findings.with(vcpu.join().unwrap());
        }
    });
    seen.findings.corrupt += wrong.load(Relaxed);
    Outcome { moved: moved.load(Relaxed), l1: l1.counts(), ..seen }
}

/// Runs one world for each format, or as many as there is time for.
fn are_right(worlds: &[fn(u64, LeftOut) -> Outcome]) -> Outcome {
    let seconds = std::env::var("SLAT_SOAK_SECONDS").ok().map(|seconds| seconds.parse().expect("seconds"));
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let mut sum = Outcome::default();
    for (seed, world) in (1..).zip(worlds.iter().cycle()) {
        if seed as usize > worlds.len() && end.is_none_or(|end| Instant::now() >= end) {
            break;
        }
        let seen = world(seed, LeftOut::Nothing);
        assert_eq!(seen.mistakes(), 0, "world {seed}: {seen:?}");
        assert!(seen.findings.verified > 0 && seen.l1.edits() > 0, "{seen:?}");
        println!("world {seed}: {seen:?}");
        sum.findings = sum.findings.with(seen.findings);
        sum.moved += seen.moved;
    }
    sum
}

/// The first wrong world.
fn first_wrong(world: fn(u64, LeftOut) -> Outcome, left_out: LeftOut) -> Option<u64> {
    (1..=50).find(|&seed| world(seed, left_out).mistakes() > 0)
}

#[test]
fn l2_reads_what_it_wrote_on_x86() {
    are_right(&[run::<Ept4>, run::<Npt4>, run::<Ept5>, run::<Npt5>, run::<Ept4NoAd>, run::<Pae>]);
}

#[test]
fn l2_reads_what_it_wrote_on_arm_and_riscv() {
    are_right(&[
        run::<Arm64L48>,
        run::<Sv39x4>,
        run::<Arm64L40>,
        run::<Sv57x4>,
        run::<Arm64NoAd>,
        run::<Sv39x4NoAd>,
    ]);
}

#[test]
fn negative_control_missing_flushes_of_the_host_are_found() {
    assert!(first_wrong(run::<Npt4>, LeftOut::HostFlushes).is_some());
}

#[test]
fn negative_control_ignored_flushes_of_l1_are_found() {
    for world in [run::<Ept4>, run::<Arm64L48>, run::<Sv39x4>] {
        assert!(first_wrong(world, LeftOut::L1Flushes).is_some());
    }
}

#[test]
fn negative_control_flushes_that_l1_omits_are_found() {
    assert!(first_wrong(run::<Ept4>, LeftOut::L1sOwn).is_some());
}

#[test]
fn negative_control_an_l2_tag_that_keeps_everything_is_found() {
    assert!(first_wrong(run::<Ept4>, LeftOut::L2Tag).is_some());
}
