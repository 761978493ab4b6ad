//! Tracked stores on one thread.

use super::*;
use crate::table::formats::Ept4;
use crate::*;

struct Identity;

impl Host for Identity {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }

    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }
}

struct Unheard;

impl WriteListener for Unheard {}

#[test]
fn a_page_that_was_writable_is_not_and_a_store_that_is_emulated_is_marked() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Ept4, _>::builder(Identity).build().unwrap();
    let slot = Slot::new(SlotId(0), Gfn(0), 8, Hva(1 << 30)).log_dirty();
    vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let _ = vcpu.fault(&mut idle, Fault { gpa: Gpa(0), access: Access::Write }).unwrap();
    let tracking = vm.memory().track_writes(&mut idle, Span::sized(Gfn(0), 1), Arc::new(Unheard)).unwrap();
    assert!(
        !vm.memory().translate(&mut idle, Gfn(0)).unwrap().leaf.perms.allows(Access::Write),
        "it is writable"
    );
    vm.memory().harvest(&mut idle, SlotId(0)).unwrap().commit();
    vm.memory().emulate_store(&mut idle, Gpa(8), &[1], |_| ()).unwrap();
    drop(tracking);
    let harvest = vm.memory().harvest(&mut idle, SlotId(0)).unwrap();
    assert_eq!(harvest.iter().count(), 1, "pages are dirty");
    harvest.commit();
}
