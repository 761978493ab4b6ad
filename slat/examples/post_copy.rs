//! Post-copy migration without a blocked thread: one thread drives all vCPUs, and the pages come from another machine.
//! A vCPU that waits for a page stops; the others run. Run it: `cargo run -p slat --example post_copy`.

use slat::table::formats::Ept4;
use slat::{
    Access, Fault, Gfn, Host, HostError, HostPage, Hva, Idle, Leave, Next, PAGE_SIZE, Pfn, Slot, SlotId,
    Token, VcpuId, Vm,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;

/// This side of the migration. A page's token is its host address: the default of `Host::token`.
#[derive(Default)]
struct Target(Mutex<Pages>);
#[derive(Default)]
struct Pages {
    here: BTreeMap<Hva, Pfn>,
    asked: BTreeSet<Hva>,
    /// REPLACE: the socket to the source.
    requests: VecDeque<Hva>,
}

impl Host for Target {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        let (page, mut pages) = (Hva(hva.0 & !(PAGE_SIZE - 1)), self.0.lock().unwrap());
        if let Some(&pfn) = pages.here.get(&page) {
            return Ok(HostPage { pfn, ..HostPage::PLAIN });
        }
        // Requested once, however many vCPUs want it. The engine calls this again before the fault returns.
        if pages.asked.insert(page) {
            pages.requests.push_back(page);
        }
        Err(HostError::Pending)
    }
}

/// REPLACE: an event of the thread's poll loop. One page arrives and is written to a frame; its vCPUs may continue.
fn page_arrives(vm: &Vm<Ept4, Target>) -> bool {
    let mut pages = vm.host().0.lock().unwrap();
    let Some(page) = pages.requests.pop_front() else { return false };
    let frame = Pfn(0x9000 + pages.here.len() as u64);
    pages.here.insert(page, frame);
    drop(pages);
    let token = Token(page.0);
    println!("{page:x?} has come for {:?}", vm.waiters(token));
    vm.ready(token); // kicks them: REPLACE `Host::kick`, if vCPUs have threads of their own
    true
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut idle = Idle::take().ok_or("one token per thread")?;
    let vm = Vm::<Ept4, _>::builder(Target::default()).vcpus(3).build()?;
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 64, Hva(1 << 40))))?;
    let touches = |id: u32| (0..6).map(|step| Gfn(u64::from(id % 2) + 3 * step)).collect();
    // Each vCPU, its next access, and the page that it waits for.
    let runs = (0..3).filter_map(|id| Some((vm.vcpu(VcpuId(id))?, touches(id), None::<Token>)));
    let mut runs: Vec<(_, VecDeque<Gfn>, _)> = runs.collect();
    while runs.iter().any(|(_, touches, _)| !touches.is_empty()) {
        for (vcpu, touches, stopped) in &mut runs {
            // Before each entry: takes a ready token. Until then, the guest could run other tasks.
            while vcpu.take_ready().is_some_and(|token| Some(token) == *stopped) {
                *stopped = None;
            }
            let Some(&gfn) = touches.front().filter(|_| stopped.is_none()) else { continue };
            match vcpu.fault(&mut idle, Fault { gpa: gfn.gpa(), access: Access::Write })? {
                Next::Leave(Leave::Pending(token)) => *stopped = Some(token),
                done => {
                    println!("vCPU {} touches {gfn:?}: {done:?}", vcpu.id().0);
                    touches.pop_front();
                }
            }
        }
        page_arrives(&vm);
    }
    println!("{} pages, {} faults", vm.host().0.lock().unwrap().here.len(), vm.stats().mapped_faults);
    Ok(())
}
