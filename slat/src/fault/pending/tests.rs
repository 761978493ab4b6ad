//! Tests of the steps that prevent a lost wake-up.

use crate::entry::Go;
use crate::table::formats::Npt4;
use crate::*;
use std::sync::{Arc, Mutex, Weak};

const TOKEN: Token = Token(9);

/// A host whose one page becomes ready before its answer "pending" returns.
#[derive(Default)]
struct Quick {
    vm: Mutex<Weak<Vm<Npt4, Quick>>>,
    asked: Mutex<u32>,
}

impl Host for Quick {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        let mut asked = self.asked.lock().unwrap();
        *asked += 1;
        if *asked > 1 {
            return Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN });
        }
        if let Some(vm) = self.vm.lock().unwrap().upgrade() {
            vm.ready(TOKEN);
        }
        Err(HostError::Pending)
    }

    fn token(&self, _: Hva) -> Token {
        TOKEN
    }
}

fn vm() -> (Idle, Arc<Vm<Npt4, Quick>>) {
    let mut idle = Idle::take().unwrap();
    let vm = Arc::new(Vm::builder(Quick::default()).build().unwrap());
    *vm.host().vm.lock().unwrap() = Arc::downgrade(&vm);
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 8, Hva(1 << 30)))).unwrap();
    (idle, vm)
}

const LOAD: Fault = Fault { gpa: Gpa(0x3000), access: Access::Read };

#[test]
fn a_page_that_arrives_before_the_fault_returns_is_mapped() {
    let (mut idle, vm) = vm();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let done = vcpu.fault(&mut idle, LOAD).unwrap();
    // Otherwise the vCPU waits, and nothing will wake it.
    assert_eq!((done, vm.waiters(TOKEN).len()), (Next::Resume(Resume::Mapped(Level::K4)), 0));
    assert_eq!(vcpu.take_ready(), None);
}

struct Tlb;

impl Translations for Tlb {
    fn flush_all(&mut self) {}
    fn flush(&mut self, _: Span<Gfn>) {}
}

/// A token becomes ready after the last check and before the entry.
#[test]
fn no_vcpu_enters_the_guest_while_a_token_is_ready() {
    let (mut idle, vm) = vm();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    drop(vcpu.enter(&mut idle, &mut Tlb));
    vm.waits.begin(VcpuId(0), TOKEN).unwrap();
    assert_eq!(vcpu.take_ready(), None);
    vm.ready(TOKEN);
    // Kicks, as a flush that finds the vCPU in the guest does.
    vm.tlb.vcpu(VcpuId(0)).kick(|| ());
    assert!(!matches!(vcpu.enter(&mut idle, &mut Tlb).go(|| ()), Go::In(..)), "it enters");
    assert_eq!(vcpu.take_ready(), Some(TOKEN));
    assert!(matches!(vcpu.enter(&mut idle, &mut Tlb).go(|| ()), Go::In(..)), "it comes back for ever");
}
