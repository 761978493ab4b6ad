//! The smallest hypervisor: one vCPU, RAM, a ROM and an exit handler. Copy it; REPLACE marks the stubs.
use slat::{table::formats::Ept4, *};

/// REPLACE: your memory; here address `RAM` + x is frame 0x9000 + x / 4096. Tables are on the heap (`Host::tables`).
struct Machine;
const RAM: Hva = Hva(0x1_0000_0000);
impl Host for Machine {
    fn resolve(&self, _may_sleep: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        let offset = hva.0.checked_sub(RAM.0).ok_or(HostError::Fault)?;
        Ok(HostPage { pfn: Pfn(0x9000 + offset / PAGE_SIZE), ..HostPage::PLAIN })
    }
    fn kick(&self, _vcpu: VcpuId) {} // REPLACE: an IPI to its processor
}
/// REPLACE: this processor. Here the guest makes one access each time, until it halts.
struct Vmx(Vec<Fault>);
impl Translations for Vmx {
    fn flush_all(&mut self) {} // INVEPT
    fn flush(&mut self, _gfns: Span<Gfn>) {} // INVEPT
}
impl Processor for Vmx {
    type Exit = Option<Fault>; // an EPT violation, or a halt
    fn run(&mut self, _tables: Pfn, _: &mut InGuest<'_>) -> Option<Fault> {
        self.0.pop() // EPTP from `_tables`, VMRESUME, GUEST_PHYSICAL_ADDRESS; `block_interrupts` is CLI
    }
}
pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut idle = Idle::take().ok_or("one token per thread")?;
    let vm = Vm::<Ept4, _>::builder(Machine).vcpus(1).build()?;
    let ram = Slot::new(SlotId(0), Gfn(0), 512, RAM); // 2 MiB at guest address 0
    let rom = Slot::new(SlotId(1), Gfn(0xf_fff0), 16, RAM + (2 << 30)).readonly(); // 64 KiB below 4 GiB
    vm.memory().commit(&mut idle, |tx| tx.create(ram).and_then(|()| tx.create(rom)))?;
    let mut vcpu = vm.vcpu(VcpuId(0)).ok_or("another thread runs vCPU 0")?;
    let stores = [0xffff_fff0, 0x5008, 0x5010].map(|gpa| Fault { gpa: Gpa(gpa), access: Access::Write });
    let mut vmx = Vmx(stores.into());
    while let Some(fault) = vcpu.run(&mut idle, &mut vmx) {
        match vcpu.fault(&mut idle, fault)? {
            Next::Resume(_) => vm.zap_all(&mut idle)?, // REPLACE by {}: here the guest goes on with new tables
            Next::Emulate(why) => println!("a device: {why:?}, {fault:?}"), // REPLACE: emulate the instruction
            Next::Leave(why) => return Err(format!("REPLACE: harvest, convert, or wait: {why:?}").into()),
        }
    }
    vm.change(&mut idle, Span::sized(RAM, PAGE_SIZE), Why::Unmap, |_| {}); // REPLACE: unmap it in the closure
    println!("{}", vm.stats());
    Ok(())
}
