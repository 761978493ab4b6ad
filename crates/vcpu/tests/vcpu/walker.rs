//! The bits that the software walker sets in the tables, and the host's changes as a vCPU on another thread sees them.

use slat::table::formats::{Ept4, Ept4NoAd, Npt4, Pae};
use slat::*;
use slat_mm::{AddressSpace, Arena, Backing, HostView, Place, Prot};
use slat_vcpu::cpu::{Core, Program, Step};
use slat_vcpu::guest::Pattern;
use slat_vcpu::{Cpu, Exit, Window};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const HVA: Hva = Hva(1 << 40);
const PAGES: u64 = 512;

struct Machine<F: Format> {
    space: Arc<AddressSpace>,
    vm: Arc<Vm<F, HostView>>,
}

impl<F: Format> Machine<F> {
    fn new(idle: &mut Idle) -> Self {
        let arena = Arena::builder().limit(64 << 20).poison(0xdd).build().unwrap();
        let space = AddressSpace::builder(&arena).build().unwrap();
        space.mmap(Place::Fixed(HVA), PAGES * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
        let vm = Arc::new(Vm::<F, _>::builder(HostView::new(&space)).vcpus(2).build().unwrap());
        space.register(&vm);
        vm.memory().commit(idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), PAGES, HVA))).unwrap();
        Self { space, vm }
    }

    fn cpu(&self, id: u32) -> Cpu<'_, F, HostView> {
        let arena = self.space.arena();
        // Frame numbers start after a huge page that is never used. SAFETY: the arena's mapping, which outlives
        // the vCPU.
        let window = unsafe { Window::new(arena.base(), arena.stats().frames + Level::M2.pages()) };
        Cpu::new(self.vm.vcpu(VcpuId(id)).unwrap(), window)
    }
}

/// One access.
struct OneAccess(Gpa, Access);

impl Program for OneAccess {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        let mut bytes = [1; 4];
        match self.1 {
            Access::Read => core.load(self.0, &mut bytes)?,
            Access::Write => core.store(self.0, &bytes)?,
            Access::Fetch => core.fetch(self.0, &mut bytes)?,
        }
        Ok(Step::Stop)
    }
}

#[test]
fn dirty_is_set_by_a_store_and_by_nothing_else() {
    let mut idle = Idle::take().unwrap();
    let machine = Machine::<Ept4>::new(&mut idle);
    let mut cpu = machine.cpu(0);
    let mut access = |idle: &mut Idle, access| {
        assert_eq!(cpu.run(idle, &mut OneAccess(Gpa(0x5000), access)), Exit::Stopped);
        machine.vm.memory().translate(idle, Gfn(5)).unwrap().leaf
    };
    for kind in [Access::Read, Access::Fetch] {
        let leaf = access(&mut idle, kind);
        assert!(leaf.accessed && !leaf.dirty, "{kind:?}");
    }
    let faults = machine.vm.stats().mapped_faults;
    assert!(access(&mut idle, Access::Write).dirty, "the translation was cached, but not for a store");
    assert_eq!(machine.vm.stats().mapped_faults, faults, "a walk sets it, not a fault");
}

/// The entries of frame 0 in the root and in the table below, as the hardware finds them.
fn upper_entries<F: Format>(machine: &Machine<F>) -> [u64; 2] {
    // SAFETY: a table page of this VM's memory, which is not taken apart. Its entries are read as the walker
    // reads them.
    let first =
        |table: Pfn| unsafe { machine.vm.tables().at(table).cast::<AtomicU64>().as_ref() }.load(Relaxed);
    let root = first(machine.vm.memory().root());
    [root, first(F::pfn(slat::table::Word(root)))]
}

#[test]
fn a_walk_sets_accessed_in_the_links_of_a_format_that_has_it_there() {
    let mut idle = Idle::take().unwrap();
    let machine = Machine::<Pae>::new(&mut idle);
    assert_eq!(machine.cpu(0).run(&mut idle, &mut OneAccess(Gpa(0x5000), Access::Write)), Exit::Stopped);
    let [pdpte, directory] = upper_entries(&machine);
    assert_eq!(pdpte & 0xfff, 1, "everything but P is reserved");
    assert_eq!(directory & 0xfff, 0b10_0111, "A, U, W, P");

    let machine = Machine::<Ept4NoAd>::new(&mut idle);
    let mut cpu = machine.cpu(0);
    for access in [Access::Read, Access::Write] {
        assert_eq!(cpu.run(&mut idle, &mut OneAccess(Gpa(0x5000), access)), Exit::Stopped);
    }
    assert_eq!(upper_entries(&machine).map(|entry| entry & 0xfff), [7; 2], "only X, W and R");
    assert_eq!(machine.vm.stats().permission_faults, 0, "a store needs no bit set in advance");
}

#[test]
fn a_prefaulted_page_faults_once_where_nothing_else_says_that_it_is_used() {
    let mut idle = Idle::take().unwrap();
    let machine = Machine::<Ept4NoAd>::new(&mut idle);
    let mut vcpu = machine.vm.vcpu(VcpuId(1)).unwrap();
    assert_eq!(vcpu.prefault(&mut idle, Span::new(Gfn(0), Gfn(8)), Prefault::OLD), Ok(8));
    let mut cpu = machine.cpu(0);
    for _ in 0..2 {
        assert_eq!(cpu.run(&mut idle, &mut OneAccess(Gpa(0x3000), Access::Read)), Exit::Stopped);
        assert_eq!(machine.vm.stats().permission_faults, 1);
    }
    let young = |gfn| machine.vm.memory().translate(&mut idle, Gfn(gfn)).unwrap().leaf.accessed;
    assert_eq!([2, 3, 4].map(young), [false, true, false]);
}

#[test]
fn a_tracked_store_faults_once_and_again_after_the_next_round() {
    let mut idle = Idle::take().unwrap();
    let machine = Machine::<Npt4>::new(&mut idle);
    let mut cpu = machine.cpu(0);
    for round in 1..4 {
        assert_eq!(cpu.run(&mut idle, &mut OneAccess(Gpa(0x7000), Access::Write)), Exit::Stopped);
        assert_eq!(cpu.run(&mut idle, &mut OneAccess(Gpa(0x7004), Access::Write)), Exit::Stopped);
        assert_eq!(machine.vm.stats().permission_faults, round - 1);
        assert!(machine.vm.memory().write_protect(&mut idle, Span::new(Gfn(0), Gfn(PAGES))).settle());
    }
}

#[test]
fn an_access_to_no_memslot_leaves_the_guest() {
    let mut idle = Idle::take().unwrap();
    let machine = Machine::<Ept4>::new(&mut idle);
    let beyond = Gpa(PAGES * PAGE_SIZE);
    let exit = machine.cpu(1).run(&mut idle, &mut OneAccess(beyond, Access::Read));
    assert_eq!(exit, Exit::Mmio(Fault { gpa: beyond, access: Access::Read }));
}

/// Two vCPUs run on their own threads. A host moves and shares their pages until both are done. Every kick is
/// answered, and no read is wrong. (`stale.rs` has the negative controls, in single steps.)
#[test]
fn kicks_are_answered_by_vcpus_that_run() {
    let machine = {
        let mut idle = Idle::take().unwrap();
        Machine::<Npt4>::new(&mut idle)
    };
    let running = AtomicU64::new(2);
    std::thread::scope(|scope| {
        for id in 0..2 {
            let (machine, running) = (&machine, &running);
            scope.spawn(move || {
                let mut idle = Idle::take().unwrap();
                let mut cpu = machine.cpu(id);
                let half = PAGES / 2 * u64::from(id);
                let mut guest = Pattern::new(Span::new(Gfn(half), Gfn(half + PAGES / 2)), 7, 20_000);
                for _ in 0..10 {
                    assert_eq!(cpu.run(&mut idle, &mut guest), Exit::Stopped);
                }
                running.fetch_sub(1, Relaxed);
                assert_eq!(
                    (guest.findings.corrupt, guest.findings.unchecked),
                    (0, 0),
                    "{:?}",
                    guest.findings
                );
                assert!(guest.findings.verified > 50_000);
            });
        }
        let mut idle = Idle::take().unwrap();
        let mut round = 0;
        while running.load(Relaxed) > 0 {
            round += 1;
            let page = HVA + round * 37 % PAGES * PAGE_SIZE;
            if round % 50 == 0 {
                drop(machine.space.fork(&mut idle).unwrap());
            } else {
                machine.space.migrate(&mut idle, Span::sized(page, PAGE_SIZE)).unwrap();
            }
        }
    });
    assert!(machine.vm.stats().flushes.paid > 0);
}
