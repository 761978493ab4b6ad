//! Tests of leaked guards and of changes of processors.

use crate::table::formats::Npt4;
use crate::*;
use core::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Barrier, mpsc};
use std::thread;

/// A host whose `lookup` stays in its section from the first `wait` to the second.
struct Stays(Barrier);

impl Host for Stays {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        self.0.wait();
        self.0.wait();
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }
}

/// Counts complete flushes on one processor.
struct Forgets<'c>(CpuId, &'c Cell<u32>);

impl Translations for Forgets<'_> {
    fn cpu(&self) -> CpuId {
        self.0
    }

    fn flush_all(&mut self) {
        self.1.set(self.1.get() + 1);
    }

    fn flush(&mut self, _: Span<Gfn>) {}
}

#[test]
#[cfg_attr(feature = "oracle-always", ignore = "breaks the contract, which the oracle reports")]
fn a_grace_period_waits_for_a_section_after_a_leaked_guard() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(Stays(Barrier::new(2))).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 8, Hva(1 << 30)))).unwrap();
    let (passed, answer) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let vm = &vm;
            vm.host().0.wait();
            passed.send(vm.reads.try_synchronize()).unwrap();
            vm.host().0.wait();
        });
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        core::mem::forget(vcpu.enter(&mut idle, &mut Forgets(CpuId(0), &Cell::new(0))));
        vcpu.prefault(&mut idle, Span::new(Gfn(1), Gfn(2)), Prefault::OLD).unwrap();
    });
    assert!(!answer.recv().unwrap(), "the grace period ends while `prefault` is in its section");
}

/// Returns the number of complete flushes by a vCPU that enters on each processor of `cpus`, is dropped, and does so
/// again under the same number.
fn forgets_all(cpus: &[u64]) -> u32 {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(Stays(Barrier::new(2))).build().unwrap();
    let forgets = Cell::new(0);
    for _ in 0..2 {
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        for &cpu in cpus {
            drop(vcpu.enter(&mut idle, &mut Forgets(CpuId(cpu), &forgets)));
        }
    }
    forgets.get()
}

#[test]
fn everything_is_flushed_on_a_first_entry_and_on_another_processor() {
    assert_eq!(forgets_all(&[7, 7, 7]), 2, "the first entry under a number, only");
    assert_eq!(forgets_all(&[7, 8, 8, 7]), 6, "each change of processors");
}

#[test]
fn a_processor_flushes_everything_after_another_has_panicked() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(Stays(Barrier::new(2))).build().unwrap();
    let forgets = Cell::new(0);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    drop(vcpu.enter(&mut idle, &mut Forgets(CpuId(7), &forgets)));
    let entry = catch_unwind(AssertUnwindSafe(|| drop(vcpu.enter(&mut idle, &mut PanicsOn(CpuId(8))))));
    assert!(entry.is_err());
    drop(vcpu.enter(&mut idle, &mut Forgets(CpuId(7), &forgets)));
    assert_eq!(forgets.get(), 2);
}

/// The translations of a processor that cannot flush.
struct PanicsOn(CpuId);

impl Translations for PanicsOn {
    fn cpu(&self) -> CpuId {
        self.0
    }

    fn flush_all(&mut self) {
        panic!("on purpose");
    }

    fn flush(&mut self, _: Span<Gfn>) {}
}

/// The translations of a processor to which a flush comes while it carries out another one, and whose second flush
/// panics.
struct PanicsLater<'vm>(&'vm Vm<Npt4, Stays>, u32);

impl Translations for PanicsLater<'_> {
    fn cpu(&self) -> CpuId {
        CpuId(8)
    }

    fn flush_all(&mut self) {}

    fn flush(&mut self, _: Span<Gfn>) {
        self.1 += 1;
        assert_eq!(self.1, 1, "on purpose");
        asks(self.0, 1);
    }
}

/// Another thread asks for the flush of a page.
fn asks(vm: &Vm<Npt4, Stays>, page: u64) {
    let hvas = Span::sized(Hva(1 << 30) + page * PAGE_SIZE, PAGE_SIZE);
    thread::scope(|scope| scope.spawn(|| vm.forget(&mut Idle::take().unwrap(), hvas)).join().unwrap());
}

#[test]
fn a_flush_that_another_processor_has_carried_out_before_it_panicked_is_owed_here() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(Stays(Barrier::new(2))).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 8, Hva(1 << 30)))).unwrap();
    let forgets = Cell::new(0);
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    drop(vcpu.enter(&mut idle, &mut Forgets(CpuId(7), &forgets)));
    asks(&vm, 0);
    let entry = catch_unwind(AssertUnwindSafe(|| drop(vcpu.enter(&mut idle, &mut PanicsLater(&vm, 0)))));
    assert!(entry.is_err());
    drop(vcpu.enter(&mut idle, &mut Forgets(CpuId(7), &forgets)));
    assert_eq!(forgets.get(), 2, "the first flush was carried out on the other processor alone");
}
