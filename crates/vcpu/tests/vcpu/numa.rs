//! Tests of NUMA balancing under guests with TLBs: a page becomes protnone and then moves, and the guest reads
//! it at its new place. The negative control is the same without flushes.

use crate::thorough::thorough;
use slat::table::formats::Npt4;
use slat::*;
use slat_mm::{
    AddressSpace, Arena, Backing, Balancer, HostView, Node, NumaScanner, NumaStats, Place, Policy, Prot,
    Settings,
};
use slat_vcpu::guest::{Findings, Pattern};
use slat_vcpu::{Cpu, Exit, Window};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

const HVA: Hva = Hva(1 << 40);
/// Pages of each vCPU: dense, and across the border of two leaf tables.
const PAGES: u64 = 512 + 88;
const VCPUS: u32 = 2;
/// After this many rounds a guest ends in any case. On a busy machine the scanner may hardly run in the first
/// rounds.
const MAX_ROUNDS: u32 = 2_400;

struct Machine {
    arena: Arc<Arena>,
    space: Arc<AddressSpace>,
    vm: Arc<Vm<Npt4, HostView>>,
}

impl Machine {
    fn new(thp: bool, sabotage: bool) -> Self {
        Node(0).run_here();
        let arena = Arena::builder().limit(128 << 20).nodes(2).poison(0xdd).build().unwrap();
        let space = AddressSpace::builder(&arena).thp(thp).build().unwrap();
        let pages = PAGES * u64::from(VCPUS);
        space.mmap(Place::Fixed(HVA), pages * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
        // A host that says that a flush was broadcast, and does none.
        let host = HostView::new(&space).with_broadcast(move |_| sabotage);
        let vm = Arc::new(Vm::<Npt4, _>::builder(host).vcpus(VCPUS).build().unwrap());
        space.register(&vm);
        let slot = Slot::new(SlotId(0), Gfn(0), pages, HVA);
        vm.memory().commit(&mut Idle::take().unwrap(), |tx| tx.create(slot)).unwrap();
        Self { arena, space, vm }
    }

    fn cpu(&self, number: u32) -> Cpu<'_, Npt4, HostView> {
        // SAFETY: the arena's mapping, which outlives the vCPU; frame numbers start after a huge page.
        let window = unsafe { Window::new(self.arena.base(), self.arena.stats().frames + Level::M2.pages()) };
        Cpu::new(self.vm.vcpu(VcpuId(number)).unwrap(), window)
    }

    /// Frames still in use and stale writes, when all threads have ended.
    fn left(self) -> [u64; 2] {
        let Self { arena, space, vm } = self;
        drop((vm, space));
        [arena.stats().in_use, arena.stats().stale_writes]
    }
}

fn guest(number: u32, accesses: u64) -> Pattern {
    Pattern::new(Span::sized(Gfn(u64::from(number) * PAGES), PAGES), u64::from(number) + 1, accesses)
}

/// Both vCPUs run in the guest for at least `rounds` rounds, and until a page has migrated. After every second
/// round they change nodes. A scanner runs without a pause, and a host thread reads their memory from node 1.
/// The run ends early when corruption shows.
fn run(policy: Policy, thp: bool, sabotage: bool, rounds: u32) -> (Findings, NumaStats, [u64; 2]) {
    let machine = Machine::new(thp, sabotage);
    let settings = Settings { policy, period: Duration::ZERO, ..Settings::default() };
    let accesses = if sabotage { 20_000 } else { thorough(20_000, 5_000) };
    let over = AtomicBool::new(false);
    let mut findings = Findings::default();
    thread::scope(|scope| {
        let vcpus = (0..VCPUS).map(|number| {
            let (machine, over) = (&machine, &over);
            scope.spawn(move || {
                let mut idle = Idle::take().unwrap();
                let (mut cpu, mut guest) = (machine.cpu(number), guest(number, accesses));
                for round in 0..MAX_ROUNDS {
                    if round >= rounds && (sabotage || machine.space.numa_stats().migrated > 0) {
                        break;
                    }
                    Node((round / 2 + number) as u8 % 2).run_here();
                    assert_eq!(cpu.run(&mut idle, &mut guest), Exit::Stopped);
                    if guest.findings.corrupt > 0 || over.load(Relaxed) && sabotage {
                        over.store(true, Relaxed);
                        break;
                    }
                }
                guest.findings
            })
        });
        let vcpus: Vec<_> = vcpus.collect();
        let scanner = NumaScanner::start(Balancer::new(&machine.space, settings));
        let host = scope.spawn(|| {
            Node(1).run_here();
            let mut idle = Idle::take().unwrap();
            for page in (0..PAGES * u64::from(VCPUS)).cycle().step_by(7) {
                if over.load(Relaxed) {
                    break;
                }
                machine.space.read(&mut idle, HVA + page * PAGE_SIZE, &mut [0]).unwrap();
            }
        });
        for vcpu in vcpus {
            findings = findings.with(vcpu.join().unwrap());
        }
        over.store(true, Relaxed);
        host.join().unwrap();
        drop(scanner);
    });
    let stats = machine.space.numa_stats();
    (findings, stats, machine.left())
}

#[test]
fn guests_find_what_they_wrote_beside_a_scanner_that_never_rests() {
    for policy in [Policy::Range, Policy::Page, Policy::PageBatched] {
        for thp in [false, true] {
            let (findings, stats, left) = run(policy, thp, false, 6);
            assert_eq!((findings.corrupt, left), (0, [0, 0]), "{policy:?}, {thp}: {:?}", findings.first);
            assert!(findings.verified > 0 && stats.hint_faults > 0 && stats.migrated > 0, "{stats:?}");
        }
    }
}

#[test]
fn negative_control_without_flushes_guests_find_wrong_words() {
    // Pages move early in the life of a world. Many short worlds are therefore better than one long world.
    assert!((0..60).any(|_| run(Policy::PageBatched, false, true, 200).0.corrupt > 0));
}

/// Without a race: the guest writes, two accesses by the host from the other node move every page, and the
/// guest reads.
fn moved_under_a_guest(policy: Policy, sabotage: bool) -> u64 {
    let machine = Machine::new(false, sabotage);
    let mut idle = Idle::take().unwrap();
    let (mut cpu, mut program) = (machine.cpu(0), guest(0, 10_000));
    assert_eq!(cpu.run(&mut idle, &mut program), Exit::Stopped);
    let balancer = Balancer::new(&machine.space, Settings { policy, ..Settings::default() });
    Node(1).run_here();
    for _ in 0..2 {
        balancer.scan(&mut idle, 1 << 30).unwrap();
        for page in 0..PAGES {
            machine.space.read(&mut idle, HVA + page * PAGE_SIZE, &mut [0]).unwrap();
        }
    }
    assert_eq!(machine.space.numa_stats().migrated, PAGES);
    assert_eq!(cpu.run(&mut idle, &mut program), Exit::Stopped);
    program.findings.corrupt
}

#[test]
fn a_page_that_moved_is_read_where_it_is() {
    for policy in [Policy::Range, Policy::Page, Policy::PageBatched] {
        assert_eq!(moved_under_a_guest(policy, false), 0, "{policy:?}");
    }
}

#[test]
fn negative_control_a_vcpu_that_was_not_flushed_reads_poison() {
    for policy in [Policy::Range, Policy::Page, Policy::PageBatched] {
        assert!(moved_under_a_guest(policy, true) > 0, "{policy:?}");
    }
}

/// All that the device uses is also mapped in the guest, and scans run. Returns the unmapped pages and the
/// flushes.
fn beside_a_device(policy: Policy) -> (u64, u64) {
    let machine = Machine::new(false, false);
    let mut idle = Idle::take().unwrap();
    let (mut cpu, mut program) = (machine.cpu(0), guest(0, 10_000));
    let device = machine.space.pin(&mut idle, Span::sized(HVA, PAGES * PAGE_SIZE)).unwrap();
    let balancer = Balancer::new(&machine.space, Settings { policy, ..Settings::default() });
    for _ in 0..3 {
        assert_eq!(cpu.run(&mut idle, &mut program), Exit::Stopped);
        balancer.scan(&mut idle, 1 << 30).unwrap();
    }
    let mapped =
        (0..PAGES).filter(|&gfn| machine.vm.memory().translate(&mut idle, Gfn(gfn)).is_some()).count();
    assert_eq!(program.findings.corrupt, 0);
    drop(device);
    (PAGES - mapped as u64, machine.vm.stats().flushes.paid)
}

#[test]
fn pinned_pages_are_neither_unmapped_nor_flushed() {
    assert_eq!(beside_a_device(Policy::PageBatched), (0, 0));
    assert_eq!(beside_a_device(Policy::Page), (0, 0));
    let (unmapped, flushes) = beside_a_device(Policy::Range);
    assert_eq!((unmapped, flushes), (PAGES, 2 * 3), "with whole ranges, each scan unmaps every page");
}
