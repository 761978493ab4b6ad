//! The smallest emulator: a processor in software with its TLB, and a host that moves the guest's page meanwhile. Copy it;
//! REPLACE marks the stubs. Run it: `cargo run -p slat --example emulator`.
use slat::{table::formats::Ept4, *};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{collections::BTreeMap, error::Error};
/// REPLACE: your memory. Here one page of one word: two frames, and the number of the one that has the page now.
#[derive(Default)]
struct Ram([AtomicU64; 2], AtomicU64);
impl Host for Ram {
    fn resolve(&self, _may_sleep: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(self.1.load(Relaxed)), ..HostPage::PLAIN })
    }
}
const STORES: u64 = 1_000_000;
/// REPLACE: your interpreter. This guest increments its word, and at the end stores to a device.
struct Cpu<'h> {
    ram: &'h Ram,
    tlb: BTreeMap<Gfn, Pfn>, // pages that it may store to
    steps: u64,
}
impl Translations for Cpu<'_> {
    fn flush_all(&mut self) {
        self.tlb.clear();
    }
    fn flush(&mut self, gfns: Span<Gfn>) {
        self.tlb.retain(|&gfn, _| !gfns.contains(gfn));
    }
}
impl Processor for Cpu<'_> {
    type Exit = Fault; // the access that misses the TLB
    fn run(&mut self, _tables: Pfn, guest: &mut InGuest<'_>) -> Fault {
        loop {
            if guest.kicked() {
                guest.answer(self); // before the next use of the TLB
            }
            let gpa = Gpa(if self.steps < STORES { 0 } else { PAGE_SIZE });
            let Some(frame) = self.tlb.get(&gpa.gfn()) else { return Fault { gpa, access: Access::Write } };
            self.ram.0[frame.0 as usize].fetch_add(1, Relaxed);
            self.steps += 1;
        }
    }
}
/// Runs the guest until it uses the device.
fn run(vm: &Vm<Ept4, Ram>) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut idle = Idle::take().ok_or("one token per thread")?;
    let mut vcpu = vm.vcpu(VcpuId(0)).ok_or("another thread runs it")?;
    let mut cpu = Cpu { ram: vm.host(), tlb: BTreeMap::new(), steps: 0 };
    loop {
        let Fault { gpa, access } = vcpu.run(&mut idle, &mut cpu);
        match vcpu.access(&mut idle, gpa, access) {
            Ok(found) => _ = cpu.tlb.insert(gpa.gfn(), found.leaf.pfn + (gpa.gfn().0 - found.gfns.start.0)),
            Err(fault) => match vcpu.fault(&mut idle, fault)? {
                Next::Resume(_) => {}              // the guest repeats the access
                Next::Emulate(_) => return Ok(()), // REPLACE: a device; here it is the power button
                Next::Leave(why) => return Err(format!("REPLACE: harvest, convert, or wait: {why:?}").into()),
            },
        }
    }
}
fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut idle = Idle::take().ok_or("one token per thread")?;
    let vm = Vm::<Ept4, _>::builder(Ram::default()).build()?;
    vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 1, Hva(0))))?;
    let Ram(frames, now) = vm.host();
    std::thread::scope(|scope| {
        let guest = scope.spawn(|| run(&vm));
        while !guest.is_finished() {
            vm.change(&mut idle, Span::sized(Hva(0), PAGE_SIZE), Why::Migrate, |_| {
                let old = now.fetch_xor(1, Relaxed) as usize;
                frames[old ^ 1].store(frames[old].load(Relaxed), Relaxed); // no TLB has the page
            });
            std::thread::sleep(std::time::Duration::from_micros(50)); // the guest's fault waited
        }
        guest.join().expect("the guest does not panic")
    })?;
    assert_eq!(frames[now.load(Relaxed) as usize].load(Relaxed), STORES); // none was lost
    println!("{}", vm.stats());
    Ok(())
}
