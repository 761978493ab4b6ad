//! Tests of an embedder that refuses a transaction.

use super::*;
use crate::Hva;
use crate::seeded::{self, Bug};
use crate::table::{TableMemory, formats::Npt4};
use crate::{Access, Fault, HostError, HostPage, VcpuId};

struct Plain;

// SAFETY: the defaults keep the contract.
unsafe impl TableMemory for Plain {}

impl Host for Plain {
    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage::PLAIN)
    }
}

/// Returns the number of pages, of 8, that stay mapped after the embedder has refused to delete their slot.
fn left_by_a_refusal() -> u64 {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(Plain).build().unwrap();
    vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 8, Hva(0)))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for gfn in 0..8 {
        vcpu.fault(&mut idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Read }).unwrap();
    }
    let refused = vm.slots().commit_with(&mut idle, |tx| tx.delete(SlotId(0)), |_| Err(()));
    assert_eq!(refused, Err(CommitError::Refused(())));
    vm.stats().leaves[0]
}

#[test]
fn a_refusal_leaves_what_is_mapped() {
    assert_eq!(left_by_a_refusal(), 8);
}

#[test]
fn mistake_the_embedder_is_asked_too_late() {
    assert_eq!(seeded::with(Bug::ConfirmedLate, left_by_a_refusal), 0);
    seeded::found(Bug::ConfirmedLate, 1);
}
