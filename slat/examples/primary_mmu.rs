//! The smallest primary MMU: frames on demand, a page that is unmapped, and a reclaim of single pages. Copy it; REPLACE
//! marks the stubs. Run it: `cargo run -p slat --example primary_mmu`.
use slat::{table::formats::Npt4, *};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// REPLACE: your page table. Here the frame of each page that is present.
#[derive(Default)]
struct Process(Mutex<BTreeMap<Hva, Pfn>>);
impl Host for Process {
    fn resolve(&self, _may_sleep: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        let mut frames = self.0.lock().unwrap();
        let fresh = Pfn(hva.0 >> PAGE_SHIFT); // REPLACE: your frame allocator; here each page has a frame of its own
        let pfn = *frames.entry(Hva(hva.0 & !(PAGE_SIZE - 1))).or_insert(fresh);
        Ok(HostPage { pfn, ..HostPage::PLAIN })
    }
}
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut idle, ram) = (Idle::take().ok_or("one token per thread")?, Hva(0x7000_0000));
    let vm = Vm::<Npt4, _>::builder(Process::default()).build()?;
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 8, ram)))?;
    vm.vcpu(VcpuId(0)).ok_or("it runs elsewhere")?.prefault(
        &mut idle,
        Span::sized(Gfn(0), 8),
        Prefault::OLD,
    )?;

    // All of a range changes: no vCPU uses it while the closure runs.
    let first = Span::sized(ram, PAGE_SIZE);
    let freed = vm.change(&mut idle, first, Why::Unmap, |_| vm.host().0.lock().unwrap().remove(&ram));
    println!("unmapped: {freed:x?}");

    // Pages of a range change: each is told under the lock of its entry. The vCPUs go on with the others.
    let evicted =
        vm.change_pages(&mut idle, Span::sized(ram, 8 * PAGE_SIZE), PageWhy::Reclaim, |idle, pages| {
            let mut evicted = Vec::new();
            for cold in [ram + 2 * PAGE_SIZE, ram + 5 * PAGE_SIZE] {
                let mut frames = vm.host().0.lock().unwrap();
                evicted.extend(frames.remove(&cold));
                pages.changed(idle, Span::sized(cold, PAGE_SIZE), None);
            }
            evicted
        });
    // No vCPU uses these frames any more. REPLACE: write them to the swap device, then free them.
    println!("reclaimed: {evicted:x?}, {} pages stay", vm.stats().leaves[0]);
    assert_eq!((evicted.len(), vm.stats().leaves[0]), (2, 5));
    Ok(())
}
