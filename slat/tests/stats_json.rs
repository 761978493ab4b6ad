//! The statistics of a VM as JSON, with the feature `serde`.

use serde_json::Value;
use slat::table::formats::Ept4;
use slat::*;

struct Identity;

impl Host for Identity {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }
}

#[test]
fn statistics_serialize_with_the_names_of_their_fields_and_causes() {
    let mut idle = Idle::take().unwrap();
    let vm = Vm::<Ept4, _>::builder(Identity).build().unwrap();
    let ram = Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30));
    vm.memory().commit(&mut idle, |tx| tx.create(ram)).unwrap();
    let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    let _ = vcpu.fault(&mut idle, Fault { gpa: Gpa(0), access: Access::Write }).unwrap();
    vm.change(&mut idle, ram.hvas(), Why::Migrate, |_| ());
    let json = serde_json::to_value(vm.stats()).unwrap();
    let flush = serde_json::json!({ "requested": 1, "paid": 1, "pages": 1 });
    assert_eq!((&json["mapped_faults"], &json["flushes"]), (&Value::from(1), &flush));
    let causes = json["flushes_by"].as_object().unwrap();
    assert_eq!(causes.len(), Cause::ALL.len());
    assert_eq!(causes["migrate"], flush);
    assert_eq!(json["nested"]["refused_faults"], 0);
    assert_eq!(serde_json::to_value(vm.table_pages(&mut idle)).unwrap()["waiting"], 0);
}
