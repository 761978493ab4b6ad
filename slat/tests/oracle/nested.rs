//! A nested guest in a VM that logs.

use crate::machine::{Tlb, page};
use slat::nested::{EptFeatures, EptTable, L1Access};
use slat::oracle::Checks;
use slat::table::formats::Npt4;
use slat::*;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};

/// L1's memory: eight pages at host address 1 MiB.
struct Ram(Vec<AtomicU64>);

impl Ram {
    fn word(&self, hva: Hva) -> &AtomicU64 {
        &self.0[(hva.0 as usize - 0x10_0000) / 8]
    }
}

impl Host for Ram {
    fn lookup(&self, hva: Hva, _: Access) -> Option<HostPage> {
        Some(page(hva.0 >> PAGE_SHIFT))
    }
    fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Err(HostError::Fault)
    }
    fn read(&self, hva: Hva) -> Option<Word> {
        Some(Word(self.word(hva).load(Acquire)))
    }
    fn compare_exchange(&self, hva: Hva, old: Word, new: Word) -> Option<Result<Word, Word>> {
        let done = self.word(hva).compare_exchange(old.0, new.0, AcqRel, Acquire);
        Some(done.map(Word).map_err(Word))
    }
}

/// L2 stores to its frame 5, behind which is L1's frame 7: the log has frame 7.
#[test]
fn a_store_of_l2_is_expected_in_no_log() {
    let mut words = vec![0_u64; 8 * 512];
    (0..3).for_each(|table| words[table * 512] = (table as u64 + 1) << 12 | 0b111);
    words[3 * 512 + 5] = 7 << 12 | 6 << 3 | 0b111;
    let ept = EptTable::new(3 << 3 | 6, EptFeatures::of(46)).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let checks = Checks::default().report({
        let seen = seen.clone();
        move |violation| seen.lock().unwrap().push(violation.to_string())
    });
    let mut idle = Idle::take().unwrap();
    let ram = Ram(words.into_iter().map(AtomicU64::new).collect());
    let vm = Vm::<Npt4, _>::builder(ram).checked_with(checks).build().unwrap();
    let slot = Slot::new(SlotId(0), Gfn(0), 8, Hva(0x10_0000)).log_dirty();
    vm.memory().commit(&mut idle, |tx| tx.create(slot)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let mut l2 = vcpu.nested(&mut idle, ept).unwrap();
    let _ = l2.fault(&mut idle, L1Access::new(Gpa(0x5000), Access::Write)).unwrap();
    let pfn = l2.translate(Gpa(0x5000)).unwrap().pfn;
    l2.enter(&mut idle, &mut Tlb(0)).poll().uses(Gfn(5), pfn, Access::Write);
    let harvest = vm.memory().harvest(&mut idle, SlotId(0)).unwrap();
    assert_eq!(harvest.iter().map(|page| page.gfn).collect::<Vec<_>>(), [Gfn(7)]);
    harvest.commit();
    assert_eq!(*seen.lock().unwrap(), [""; 0]);
}
