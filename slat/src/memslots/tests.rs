//! Tests of an embedder that refuses a transaction.

use super::*;
use crate::Hva;
use crate::table::formats::Npt4;
use crate::vm::Vm;
use crate::{Access, Fault, HostError, HostPage, VcpuId};

struct Plain;

impl Host for Plain {
    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage::PLAIN)
    }
}

#[test]
fn a_refusal_leaves_what_is_mapped() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Npt4, _>::builder(Plain).build().unwrap();
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 8, Hva(0)))).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    for gfn in 0..8 {
        let _ = vcpu.fault(&mut idle, Fault { gpa: Gfn(gfn).gpa(), access: Access::Read }).unwrap();
    }
    let refused = vm.memory().commit_with(&mut idle, |tx| tx.delete(SlotId(0)), |_| Err(()));
    assert_eq!(refused, Err(CommitError::Refused(())));
    assert_eq!(vm.stats().leaves[0], 8);
}
