//! Dirty rings and a vCPU with a TLB, step by step. The vCPU stops where its ring is full, and goes on there.
//! After each harvest, the ring tells a store through the TLB. The negative control omits the flush of the
//! harvest: the second store then goes through the TLB, and no ring tells it.

use slat::table::formats::{Ept4, Ept4NoAd};
use slat::*;
use slat_mm::{AddressSpace, Arena, Backing, HostView, Place, Prot};
use slat_vcpu::cpu::{Core, Program, Step};
use slat_vcpu::{Cpu, Exit, Window};
use std::sync::Arc;

const HVA: Hva = Hva(1 << 40);
const PAGES: u64 = 512;
/// Stores until the smallest ring is full.
const FULL: u64 = 192;

/// Stores its round to the first word of each page.
struct Sweep {
    round: u64,
    next: u64,
    pages: u64,
}

impl Program for Sweep {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        if self.next == self.pages {
            return Ok(Step::Stop);
        }
        core.store(Gfn(self.next).gpa(), &self.round.to_le_bytes())?;
        self.next += 1;
        Ok(Step::Next)
    }
}

/// Runs `test` on the only vCPU of a VM. The VM's memory is one slot that logs.
fn with_ring<F: Format>(
    sabotage: bool,
    test: impl FnOnce(&mut Idle, &AddressSpace, &Vm<F, HostView>, &mut Cpu<'_, F, HostView>),
) {
    let mut idle = Idle::take().unwrap();
    let arena = Arena::builder().limit(16 << 20).build().unwrap();
    let space = AddressSpace::builder(&arena).build().unwrap();
    space.mmap(Place::Fixed(HVA), PAGES * PAGE_SIZE, Prot::ReadWrite, Backing::Anonymous).unwrap();
    let ring = DirtyLog::ring(RingSize::new(4096).unwrap());
    // A host that says that a flush was broadcast, and does none.
    let host = HostView::new(&space).with_broadcast(move |_| sabotage);
    let vm = Arc::new(Vm::<F, _>::builder(host).dirty_log(ring).build().unwrap());
    space.register(&vm);
    let slot = Slot::new(SlotId(0), Gfn(0), PAGES, HVA).log_dirty();
    vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
    // SAFETY: the arena's mapping, which outlives the vCPU.
    let window = unsafe { Window::new(arena.base(), arena.stats().frames + Level::M2.pages()) };
    let mut cpu = Cpu::new(vm.vcpu(VcpuId(0)).unwrap(), window);
    test(&mut idle, &space, &vm, &mut cpu);
}

/// Takes and commits the pages in the vCPU's ring.
fn told<F: Format>(idle: &mut Idle, vm: &Vm<F, HostView>) -> Vec<u64> {
    let harvest = vm.harvest_ring(idle, VcpuId(0)).unwrap();
    let pages = harvest.iter().map(|page| page.page).collect();
    harvest.commit();
    pages
}

fn word(idle: &mut Idle, space: &AddressSpace, page: u64) -> u64 {
    let mut bytes = [0; 8];
    space.read(idle, HVA + page * PAGE_SIZE, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn a_vcpu_stops_where_its_ring_is_full_and_goes_on_there() {
    fn run<F: Format>() {
        with_ring::<F>(false, |idle, space, vm, cpu| {
            for round in 1..3 {
                let mut sweep = Sweep { round, next: 0, pages: PAGES };
                let mut done = 0;
                while done + FULL < PAGES {
                    assert_eq!(cpu.run(idle, &mut sweep), Exit::RingFull);
                    assert_eq!(cpu.run(idle, &mut sweep), Exit::RingFull, "the ring was not harvested");
                    assert_eq!(sweep.next, done + FULL);
                    assert_eq!(word(idle, space, sweep.next), round - 1, "the store has not been made");
                    assert!(told(idle, vm).into_iter().eq(done..done + FULL));
                    done += FULL;
                }
                assert_eq!(cpu.run(idle, &mut sweep), Exit::Stopped);
                assert!(told(idle, vm).into_iter().eq(done..PAGES));
                assert!((0..PAGES).all(|page| word(idle, space, page) == round));
            }
        });
    }
    run::<Ept4>();
    run::<Ept4NoAd>();
}

/// Stores to a page in two rounds, with a harvest after each. Returns the second harvest.
fn told_again<F: Format>(sabotage: bool) -> Vec<u64> {
    let mut again = Vec::new();
    with_ring::<F>(sabotage, |idle, space, vm, cpu| {
        for round in 1..3 {
            let mut sweep = Sweep { round, next: 5, pages: 6 };
            assert_eq!(cpu.run(idle, &mut sweep), Exit::Stopped);
            again = told(idle, vm);
            assert_eq!(word(idle, space, 5), round);
        }
    });
    again
}

#[test]
fn a_store_through_the_tlb_is_told_after_each_harvest() {
    assert_eq!(told_again::<Ept4>(false), [5]);
    assert_eq!(told_again::<Ept4NoAd>(false), [5]);
}

#[test]
fn negative_control_without_the_flush_the_second_store_is_lost() {
    assert_eq!(told_again::<Ept4>(true), []);
}
