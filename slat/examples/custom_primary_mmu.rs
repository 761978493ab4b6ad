//! A primary MMU of your own under two VMs: it allocates frames on demand, and moves a page while both VMs map it.
//! Run it: `cargo run -p slat --example custom_primary_mmu`. `slat-mm` is a complete one.

use slat::table::formats::Npt4;
use slat::{
    Access, Again, Event, Fault, Gfn, Gpa, Host, HostError, HostPage, Hva, Idle, PAGE_SIZE, Pfn,
    SecondaryMmu, Slot, SlotId, Span, VcpuId, Vm, Why,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// One address space, seen by any number of VMs. REPLACE: your page tables. Here frames by host page.
#[derive(Clone, Default)]
struct Process(Arc<Mutex<BTreeMap<Hva, Pfn>>>);

impl Host for Process {
    fn resolve(&self, _may_sleep: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        let mut frames = self.0.lock().unwrap();
        let fresh = Pfn(0x9000 + frames.len() as u64);
        let pfn = *frames.entry(Hva(hva.0 & !(PAGE_SIZE - 1))).or_insert(fresh);
        Ok(HostPage { pfn, ..HostPage::PLAIN })
    }
}

/// Announces the event to every listener, nested; `change` is innermost: no guest uses the range while it runs.
fn around(
    idle: &mut Idle,
    listeners: &[&dyn SecondaryMmu],
    event: Event,
    change: &mut dyn FnMut(),
) -> Result<(), Again> {
    let Some((first, others)) = listeners.split_first() else {
        change();
        return Ok(());
    };
    let mut told = Ok(());
    first.around(idle, event, &mut |idle, _| told = around(idle, others, event, change))?;
    told
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut idle = Idle::take().ok_or("one token per thread")?;
    let process = Process::default();
    let vms = [Vm::<Npt4, _>::builder(process.clone()).build()?, Vm::builder(process.clone()).build()?];
    let page = Hva(0x7000_0000);
    let touch = |idle: &mut Idle| -> Result<[Option<Pfn>; 2], Box<dyn std::error::Error>> {
        for vm in &vms {
            let mut vcpu = vm.vcpu(VcpuId(0)).ok_or("it is run elsewhere")?;
            let _ = vcpu.fault(idle, Fault { gpa: Gpa(0), access: Access::Write })?;
        }
        Ok([0, 1].map(|vm| vms[vm].memory().translate(idle, Gfn(0)).map(|found| found.leaf.pfn)))
    };
    for vm in &vms {
        vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 16, page)))?;
    }
    println!("both VMs map the page: frames {:x?}", touch(&mut idle)?);

    // Compaction moves the page to another frame.
    let event = Event::new(Span::sized(page, PAGE_SIZE), Why::Migrate);
    around(&mut idle, &[&vms[0], &vms[1]], event, &mut || {
        // REPLACE: copy the contents to the new frame; no guest writes them now.
        process.0.lock().unwrap().insert(page, Pfn(0xa000));
    })?;
    assert_eq!(vms[0].memory().translate(&mut idle, Gfn(0)), None); // the old frame may be freed
    assert_eq!(touch(&mut idle)?, [Some(Pfn(0xa000)); 2]);
    println!("it has moved, and each VM asks again: {:x?}", touch(&mut idle)?);
    Ok(())
}
