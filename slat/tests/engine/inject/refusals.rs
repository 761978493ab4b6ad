//! A host without a page: the fault says why, and the next one is unaffected.

use super::controlled_host::{POLICIES, When, on_a_vm, store};
use slat::baselines::MmuLock;
use slat::*;

#[test]
fn a_refusal_is_told_and_forgotten() {
    for lock in POLICIES {
        on_a_vm(lock, |vm, idle| {
            for error in [HostError::Fault, HostError::NoMemory, HostError::Poisoned, HostError::Io] {
                for gfn in [Gfn(5), Gfn(700)] {
                    vm.host().0.will(gfn, When::Refuses(error));
                    let refused = store(vm, idle, VcpuId(0), gfn);
                    assert_eq!(refused, Err(FaultError::Host(error)));
                    assert_eq!(refused.unwrap_err().to_string(), error.to_string());
                    assert_eq!(vm.memory().translate(idle, gfn), None);
                }
            }
            assert_eq!(store(vm, idle, VcpuId(0), Gfn(5)), Ok(Next::Resume(Resume::Mapped(Level::K4))));
        });
    }
}

#[test]
fn a_refusal_ends_a_pre_fault_with_what_came_before_it() {
    on_a_vm(MmuLock::None, |vm, idle| {
        vm.host().0.will(Gfn(7), When::Refuses(HostError::Io));
        let mut vcpu = vm.vcpu(VcpuId(1)).unwrap();
        let refused = vcpu.prefault(idle, Span::new(Gfn(0), Gfn(20)), Prefault::OLD);
        assert_eq!(refused, Ok(7), "so many are there");
        drop(vcpu);
        assert!(
            vm.memory().translate(idle, Gfn(6)).is_some() && vm.memory().translate(idle, Gfn(7)).is_none()
        );
    });
}
