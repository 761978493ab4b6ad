//! A device that the guest drives itself: its registers and its frame buffer, each with its memory type.
//! Run it: `cargo run -p slat --example passthrough`.

use slat::table::formats::Ept4;
use slat::{
    Access, Emulate, Fault, Gfn, Gpa, Host, HostError, HostPage, Hva, Idle, MemoryType, Next, PAGE_SHIFT,
    Pfn, Slot, SlotId, VcpuId, Vm,
};

const RAM: Hva = Hva(0x7000_0000);
/// The hypervisor's mapping of the device's BARs. REPLACE: the addresses in your own page tables.
const REGISTERS: Hva = Hva(0x8000_0000);
const FRAME_BUFFER: Hva = Hva(0x9000_0000);
/// Their physical addresses.
const DEVICE: Pfn = Pfn(0xf_e000);

/// A host whose frame is the address, except for the device.
struct Machine;

impl Host for Machine {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        let pfn = match hva.0.checked_sub(REGISTERS.0) {
            Some(offset) => DEVICE + (offset >> PAGE_SHIFT),
            None => Pfn(hva.0 >> PAGE_SHIFT),
        };
        Ok(HostPage { pfn, ..HostPage::PLAIN })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut idle = Idle::take().expect("the first on this thread");
    let vm = Vm::<Ept4, _>::builder(Machine).build()?;
    vm.memory().commit(&mut idle, |tx| {
        tx.create(Slot::new(SlotId(0), Gfn(0), 0x800, RAM))?;
        // Each access exactly as the guest makes it; no execution.
        let registers = Slot::new(SlotId(1), Gfn(0xc_0000), 4, REGISTERS);
        tx.create(registers.memory(MemoryType::Device).no_execute())?;
        // Stores may be combined.
        let frame_buffer = Slot::new(SlotId(2), Gfn(0xc_1000), 0x400, FRAME_BUFFER);
        tx.create(frame_buffer.memory(MemoryType::WriteCombining).no_execute())
    })?;

    let mut vcpu = vm.vcpu(VcpuId(0)).expect("the first of its number");
    for (what, gpa) in
        [("memory", Gpa(0x1000)), ("registers", Gpa(0xc000_0000)), ("frame buffer", Gpa(0xc100_0000))]
    {
        let _ = vcpu.fault(&mut idle, Fault { gpa, access: Access::Write })?;
        let leaf = vm.memory().translate(&mut idle, gpa.gfn()).expect("just mapped").leaf;
        println!("{what}: {:?}, {:?}, {:?}", leaf.pfn, leaf.perms, leaf.memory);
    }
    // The guest jumps to the device: the hypervisor decides what follows.
    let jump = vcpu.fault(&mut idle, Fault { gpa: Gpa(0xc000_0000), access: Access::Fetch })?;
    assert_eq!(jump, Next::Emulate(Emulate::ReadOnly));
    println!("a fetch from the registers: {jump:?}");
    Ok(())
}
