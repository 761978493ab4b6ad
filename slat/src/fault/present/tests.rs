//! A leaf that was read before its slot gave way to another one, which begins inside it.

use crate::seeded::{self, Bug};
use crate::table::formats::Npt4;
use crate::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

/// Everything is backed by read-only pages of 2 MiB.
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

/// A leaf of 2 MiB is read; slot 0, whose it is, is replaced by one that has its upper half; then a store faults on the
/// leaf. Whether the upgrade of the leaf survives.
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

/// Seen by the check for overflow, which test builds have.
#[test]
fn mistake_the_leaf_is_not_compared_with_the_slot() {
    assert!(!survives(Some(Bug::LeafUncompared)));
    seeded::found(Bug::LeafUncompared, 1);
}
