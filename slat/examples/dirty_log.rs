//! Pre-copy migration with a dirty log: copies the written pages, round by round, until few are left.
//! Run it: `cargo run -p slat --example dirty_log`.

use slat::table::formats::Ept4;
use slat::{
    Access, Fault, Gfn, Host, HostError, HostPage, Hva, Idle, PAGE_SHIFT, Pfn, Slot, SlotId, Vcpu, VcpuId, Vm,
};
use std::error::Error;

/// REPLACE: your memory. Here frame = address.
struct Identity;
impl Host for Identity {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }
}

const RAM: SlotId = SlotId(0);
const PAGES: usize = 512;

/// REPLACE: the guest runs. Here it stores one word to each of these pages; the processor's TLB holds nothing.
fn run(
    vcpu: &mut Vcpu<Ept4, Identity>,
    idle: &mut Idle,
    memory: &mut [u64],
    pages: std::ops::Range<u64>,
) -> Result<(), Box<dyn Error>> {
    for page in pages {
        // The first store to a page after a harvest faults, and is logged.
        let _ = vcpu.fault(idle, Fault { gpa: Gfn(page).gpa(), access: Access::Write })?;
        memory[page as usize] += 1;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut idle = Idle::take().ok_or("one token per thread")?;
    let vm = Vm::<Ept4, _>::builder(Identity).build()?;
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(RAM, Gfn(0), PAGES as u64, Hva(1 << 30))))?;
    let mut vcpu = vm.vcpu(VcpuId(0)).ok_or("another thread runs vCPU 0")?;
    let (mut here, mut there) = (vec![0; PAGES], vec![0; PAGES]);
    run(&mut vcpu, &mut idle, &mut here, 0..512)?;

    // From here on stores are logged; then every page is copied once.
    vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(RAM, true))?;
    there.copy_from_slice(&here);
    for round in 1.. {
        // The guest has run meanwhile: each round has fewer pages, since a shorter round leaves less time for stores.
        run(&mut vcpu, &mut idle, &mut here, 0..(256 >> round))?;

        // On return, earlier stores are in memory; later stores are in the log again.
        let harvest = vm.memory().harvest(&mut idle, RAM)?;
        for page in harvest.iter() {
            there[page.page as usize] = here[page.page as usize]; // REPLACE: send it; on an error, drop the harvest
        }
        let pages = harvest.pages();
        harvest.commit(); // the pages are safe: forget them
        println!("round {round}: {pages} pages");
        if pages <= 8 {
            break; // REPLACE: stop the vCPUs, and do one more round
        }
    }
    assert_eq!(here, there, "a page was lost");

    // The migration has ended or was cancelled: no store faults for the log any more.
    vm.memory().commit(&mut idle, |tx| tx.set_log_dirty(RAM, false))?;
    println!("{:?}", vm.stats());
    Ok(())
}
