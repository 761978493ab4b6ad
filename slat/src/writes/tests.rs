//! Mistakes that one thread shows.

use super::*;
use crate::seeded::{self, Bug};
use crate::table::formats::Ept4;
use crate::*;

struct Identity;

// SAFETY: the defaults keep the contract.
unsafe impl TableMemory for Identity {}

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

/// Whether a page that a vCPU has stored to is still writable when stores to it are tracked; and the number of dirty
/// pages after the VMM emulates a store.
fn tracked() -> (bool, usize) {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Ept4, _>::builder(Identity).build().unwrap();
    let slot = Slot::new(SlotId(0), Gfn(0), 8, Hva(1 << 30)).log_dirty();
    vm.slots().commit(&mut idle, |tx| tx.create(slot)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    vcpu.fault(&mut idle, Fault { gpa: Gpa(0), access: Access::Write }).unwrap();
    let tracking = vm.track_writes(&mut idle, Span::sized(Gfn(0), 1), Arc::new(Unheard)).unwrap();
    let writable = vm.translate(&mut idle, Gfn(0)).unwrap().leaf.perms.allows(Access::Write);
    vm.slots().harvest(&mut idle, SlotId(0)).unwrap().commit();
    vm.slots().emulate_store(&mut idle, Gpa(8), &[1], |_| ()).unwrap();
    drop(tracking);
    let harvest = vm.slots().harvest(&mut idle, SlotId(0)).unwrap();
    let dirty = harvest.iter().count();
    harvest.commit();
    (writable, dirty)
}

#[test]
fn a_page_that_was_writable_is_not_and_a_store_that_is_emulated_is_marked() {
    assert_eq!(tracked(), (false, 1));
    assert_eq!(seeded::with(Bug::WatchUnprotected, tracked), (true, 1));
    seeded::found(Bug::WatchUnprotected, 1);
    assert_eq!(seeded::with(Bug::EmulatedUnmarked, tracked), (false, 0));
    seeded::found(Bug::EmulatedUnmarked, 1);
}
