//! Worlds of fixed work: vCPUs run patterns in L2, L1 edits its tables by lot, and a thread of the host moves pages, takes snapshots,
//! protects, zaps and harvests. `SLAT_SOAK_SECONDS` makes worlds with other seeds follow.

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
/// L1's memory, handed out by regions.
const REGION: u64 = 8 << 20;
const REGIONS: u64 = 6;
const VCPUS: u32 = 2;
/// Pages of each vCPU's L2, and where they begin: in a leaf table of their own, and across two.
const PAGES: u64 = 40;
/// Accesses of each vCPU, at night or where something is left out and otherwise; and pages that the host moves, at least.
const ACCESSES: [u64; 2] = [30_000, 8_000];
const MOVES: u64 = 20;

/// What is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LeftOut {
    Nothing,
    /// Flushes of the host.
    HostFlushes,
    /// L1's, as the engine learns of them.
    L1Flushes,
    /// L1's, by L1.
    L1sOwn,
    /// What L2's tag is told to forget.
    L2Tag,
}

struct Machine<F: Format> {
    arena: Arc<Arena>,
    space: Arc<AddressSpace>,
    vm: Arc<Vm<F, HostView>>,
    given: AtomicU64,
}

/// One vCPU's way to the machine.
struct Wires<'m, F: Format> {
    machine: &'m Machine<F>,
}

impl<F: Format> Platform for Wires<'_, F> {
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
        let builder = Vm::<F, _>::builder(HostView::new(&space)).vcpus(VCPUS);
        let builder = if left_out == LeftOut::HostFlushes { builder.sabotage_flushes() } else { builder };
        let vm = Arc::new(builder.build().unwrap());
        space.register(&vm);
        // Two slots: the host's changes and logs meet their border.
        let half = REGIONS * REGION / PAGE_SIZE / 2;
        for (id, first) in [(0, 0), (1, half)] {
            let slot = Slot::new(SlotId(id), Gfn(first), half, HVA + first * PAGE_SIZE).log_dirty();
            let slot = if id == 0 { slot } else { Slot { log_dirty: false, ..slot } };
            vm.slots().commit(idle, |tx| tx.create(slot)).unwrap();
        }
        Self { arena, space, vm, given: AtomicU64::new(0) }
    }

    fn window(&self) -> Window {
        // SAFETY: the arena's mapping, which outlives the vCPU; frame numbers start after a huge page.
        unsafe { Window::new(self.arena.base(), self.arena.stats().frames + Level::M2.pages()) }
    }

    /// One change by the host. Returns how many pages have moved.
    fn change(&self, idle: &mut Idle, random: &mut fastrand::Rng, left_out: LeftOut) -> u64 {
        let given = self.given.load(Relaxed).min(REGIONS) * REGION / PAGE_SIZE;
        let page = random.u64(..given.max(1));
        // Most of what L1 uses is at the beginning of its memory.
        let page = if random.bool() { page % 128 } else { page };
        let hvas = Span::sized(HVA + page * PAGE_SIZE, PAGE_SIZE);
        // What is told to no vCPU must not be shared with a snapshot.
        match random.u8(..32) {
            0 if left_out == LeftOut::Nothing => drop(self.space.fork(idle)),
            1 => self.vm.zap_all(idle).unwrap(),
            2 => _ = self.vm.write_protect(idle, Span::sized(Gfn(page), 8)).settle(),
            3 => {
                if let Ok(harvest) = self.vm.slots().harvest(idle, SlotId(0)) {
                    harvest.commit();
                }
            }
            4 => self.vm.lockless(idle).age(Span::sized(Gfn(0), 256), |_| {}),
            5 => _ = self.vm.invalidate(hvas, Why::Clear).apply(idle).settle(),
            _ => return self.space.migrate(idle, hvas).unwrap(),
        }
        0
    }
}

/// What came of a world.
#[derive(Default, Debug)]
struct Seen {
    findings: Findings,
    moved: u64,
    l1: L1Counts,
}

impl Seen {
    fn mistakes(&self) -> u64 {
        self.findings.corrupt + self.l1.mistakes()
    }
}

/// One of the vCPUs that are at work, also where it panics: the host goes on as long as there is one.
struct AtWork<'w>(&'w AtomicU64);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Runs a world. It ends early when something is wrong.
fn run<F: Nest>(seed: u64, left_out: LeftOut) -> Seen {
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
    let mut seen = Seen::default();
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
                    let (mut done, mut wires) = (0, Wires { machine });
                    while (done < accesses || moved.load(Relaxed) < MOVES) && wrong.load(Relaxed) == 0 {
                        done += 500;
                        let ended = vcpu.run(&mut idle, &mut wires, &mut guest);
                        let is_right = match ended {
                            Ok(ended) => ended == Ended::Stopped,
                            Err(error) if left_out == LeftOut::Nothing && !cfg!(seeded) => panic!("{error}"),
                            Err(_) => false,
                        };
                        if !is_right || guest.findings.corrupt > 0 || l1.counts().mistakes() > 0 {
                            wrong.fetch_add(1, Relaxed);
                        }
                    }
                    drop(at_work);
                    if left_out == LeftOut::Nothing && !cfg!(seeded) {
                        vcpu.check_all(&mut idle, &mut wires).unwrap();
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
    Seen { moved: moved.load(Relaxed), l1: l1.counts(), ..seen }
}

/// One world for each format, as many as there is time for.
fn are_right(worlds: &[fn(u64, LeftOut) -> Seen]) -> Seen {
    let seconds = std::env::var("SLAT_SOAK_SECONDS").ok().map(|seconds| seconds.parse().expect("seconds"));
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let mut sum = Seen::default();
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

/// The first of so many worlds in which something is wrong.
fn first_wrong(world: fn(u64, LeftOut) -> Seen, left_out: LeftOut) -> Option<u64> {
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
fn negative_control_without_the_hosts_flushes_it_does_not() {
    assert!(first_wrong(run::<Npt4>, LeftOut::HostFlushes).is_some());
}

#[test]
fn negative_control_with_l1s_flushes_ignored_it_does_not() {
    for world in [run::<Ept4>, run::<Arm64L48>, run::<Sv39x4>] {
        assert!(first_wrong(world, LeftOut::L1Flushes).is_some());
    }
}

#[test]
fn negative_control_where_l1_leaves_out_its_flushes_it_does_not() {
    assert!(first_wrong(run::<Ept4>, LeftOut::L1sOwn).is_some());
}

#[test]
fn negative_control_where_l2s_tag_forgets_nothing_it_does_not() {
    assert!(first_wrong(run::<Ept4>, LeftOut::L2Tag).is_some());
}
