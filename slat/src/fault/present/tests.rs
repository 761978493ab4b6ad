//! Tests of a leaf that was read before its slot was replaced by one that begins inside the leaf.

use crate::seeded::{self, Bug};
use crate::table::formats::Npt4;
use crate::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

/// A host that backs everything by read-only pages of 2 MiB.
struct Huge;

// SAFETY: the defaults keep the contract.
unsafe impl TableMemory for Huge {}

impl Host for Huge {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), level: Level::M2, writable: false, ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }
}

fn slot(gfn: u64, pages: u64) -> Slot {
    Slot::new(SlotId(0), Gfn(gfn), pages, Hva(0x4000_0000))
}

/// Reads a leaf of 2 MiB of slot 0, replaces the slot by one with the upper half, then faults on the leaf by a store.
/// Returns whether the upgrade ends without a panic.
fn survives(mistake: Option<Bug>) -> bool {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(Huge).build().unwrap();
    vm.slots().commit(&mut idle, |tx| tx.create(slot(0, 512))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let fault = |access| Fault { gpa: Gfn(300).gpa(), access };
    assert_eq!(vcpu.fault(&mut idle, fault(Access::Read)), Ok(Done::Mapped(Level::M2)));
    let before = vm.slots().generation().number();
    thread::scope(|scope| {
        let walk = vm.shared(&mut idle);
        let at = walk.descend(Gfn(300)); // as an attempt does
        scope.spawn(|| {
            let replaced = vm.slots().commit(&mut Idle::take().unwrap(), |tx| {
                tx.delete(SlotId(0))?;
                tx.create(slot(256, 256))
            });
            replaced.unwrap();
        });
        while vm.slots().generation().number() == before {
            thread::yield_now();
        }
        let mut upgrade = || vcpu.present(&walk, at, fault(Access::Write)).is_ok();
        let ended = catch_unwind(AssertUnwindSafe(|| match mistake {
            Some(bug) => seeded::with(bug, &mut upgrade),
            None => upgrade(),
        }));
        drop(walk);
        ended.unwrap_or(false)
    })
}

#[test]
fn a_leaf_that_reaches_out_of_its_slot_is_not_upgraded() {
    assert!(survives(None));
}

/// The overflow check of test builds finds it.
#[test]
fn mistake_the_leaf_is_not_compared_with_the_slot() {
    assert!(!survives(Some(Bug::LeafUncompared)));
    seeded::found(Bug::LeafUncompared, 1);
}
