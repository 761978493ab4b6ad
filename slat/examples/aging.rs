//! Aging: a pass now and then finds the pages that the guest uses, keeps an age for each, and reclaims the cold ones.
//! Run it: `cargo run -p slat --example aging`.

use slat::table::formats::Sv39x4NoAd;
use slat::{
    Access, Fault, Gfn, Host, HostError, HostPage, Hva, Idle, PAGE_SHIFT, PAGE_SIZE, Pfn, Slot, SlotId, Span,
    Vcpu, VcpuId, Vm, Why,
};
use std::error::Error;

/// REPLACE: your memory. Here frame = address.
struct Identity;
impl Host for Identity {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN })
    }
}

const RAM: Hva = Hva(1 << 30);
const PAGES: u64 = 256;
/// The guest keeps using every 16th page.
const HOT: usize = 16;

/// REPLACE: the guest runs. This format is of hardware without Accessed bits, so the first access after a pass faults,
/// which marks the page as used; in other formats the walker sets the bit without a fault.
fn run(
    vcpu: &mut Vcpu<Sv39x4NoAd, Identity>,
    idle: &mut Idle,
    pages: impl Iterator<Item = u64>,
) -> Result<(), Box<dyn Error>> {
    for page in pages {
        let _ = vcpu.fault(idle, Fault { gpa: Gfn(page).gpa(), access: Access::Read })?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut idle = Idle::take().ok_or("one token per thread")?;
    let vm = Vm::<Sv39x4NoAd, _>::builder(Identity).build()?;
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), PAGES, RAM)))?;
    let mut vcpu = vm.vcpu(VcpuId(0)).ok_or("another thread runs vCPU 0")?;
    run(&mut vcpu, &mut idle, 0..PAGES)?;

    // The age of a page: passes since its last use.
    let mut ages = vec![0u32; PAGES as usize];
    for pass in 0..4 {
        run(&mut vcpu, &mut idle, (0..PAGES).step_by(HOT))?;
        for age in &mut ages {
            *age += 1;
        }
        let mut young = 0;
        // No lock, no flush: vCPUs may fault meanwhile. The next pass starts anew.
        vm.memory().lockless(&mut idle).age(Span::sized(Gfn(0), PAGES), |seen| {
            seen.pages().for_each(|gfn| ages[gfn.0 as usize] = 0);
            young += seen.count();
        });
        println!("pass {pass}: {young} pages were used");
    }

    // Reclaim the pages that were not used for three passes.
    let cold = (0..PAGES).filter(|&page| ages[page as usize] >= 3);
    for page in cold.clone() {
        let _change = vm
            .invalidate(Span::sized(RAM + page * PAGE_SIZE, PAGE_SIZE), Why::Clear)
            .apply(&mut idle)
            .settle();
        // REPLACE: write the page to swap, change your table, free the frame.
    }
    println!("{} of {PAGES} pages are reclaimed", cold.count());
    let left = (0..PAGES).filter(|&page| vm.memory().translate(&mut idle, Gfn(page)).is_some()).count();
    assert_eq!(left, PAGES as usize / HOT, "the hot ones stay");
    Ok(())
}
