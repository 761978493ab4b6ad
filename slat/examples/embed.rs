//! The smallest hypervisor: one vCPU, one memslot, and an exit handler. Copy it and replace what is marked.
//!
//! `cargo run -p slat --example embed`

use slat::table::formats::Ept4;
use slat::{
    Access, Done, Fault, Gfn, Gpa, Host, HostError, HostPage, Hva, Idle, Level, PAGE_SIZE, Pfn, Slot, SlotId,
    Span, TableMemory, Translations, VcpuId, Vm, Why,
};

/// REPLACE: your memory. Here host address `0x1_0000_0000` + x is frame 0x9000 + x / 4096, for ever.
struct Machine;

const RAM: Hva = Hva(0x1_0000_0000);

// SAFETY: the defaults take table pages from the global allocator and keep the contract.
// REPLACE on bare metal: all four functions, so that a table's frame number is what the hardware must be told.
unsafe impl TableMemory for Machine {}

impl Host for Machine {
    fn resolve(&self, _may_sleep: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        let offset = hva.0.checked_sub(RAM.0).ok_or(HostError::Fault)?;
        Ok(HostPage { pfn: Pfn(0x9000 + offset / PAGE_SIZE), level: Level::K4, writable: true })
    }

    fn kick(&self, vcpu: VcpuId) {
        println!("  IPI to vCPU {}", vcpu.0); // REPLACE: make it leave the guest
    }
}

/// REPLACE: INVEPT. Called when the vCPU next enters, or answers a kick.
struct Tlb;

impl Translations for Tlb {
    fn flush_all(&mut self) {
        println!("  INVEPT");
    }
    fn flush(&mut self, gfns: Span<Gfn>) {
        println!("  INVEPT for {gfns:?}");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut idle = Idle::take().ok_or("one token per thread")?;
    let vm = Vm::<Ept4, _>::builder(Machine).vcpus(1).build()?;
    println!("EPTP points to frame {:#x}", vm.root().0);

    // 2 MiB of RAM at guest address 0; the host address behind it.
    vm.slots().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, RAM)))?;

    // REPLACE: the loop around VMLAUNCH. These are the exits of a guest that touches four addresses.
    let mut vcpu = vm.vcpu(VcpuId(0)).ok_or("nobody else runs vCPU 0")?;
    let exits = [
        (0x5008, Access::Write),
        (0x5010, Access::Read),
        (0x6000, Access::Fetch),
        (0xfee0_0000, Access::Write),
    ];
    for (gpa, access) in exits {
        let guest = vcpu.enter(&mut idle, &mut Tlb); // what was flushed meanwhile is forgotten first
        drop(guest); // REPLACE: VMLAUNCH … and here is the EPT violation
        let fault = Fault { gpa: Gpa(gpa), access };
        match vcpu.fault(&mut idle, fault)? {
            Done::Mmio => println!("{gpa:#x} {access:?}: no memory there: emulate a device"),
            done => println!("{gpa:#x} {access:?}: {done:?}"),
        }
    }

    // The host wants the page at 0x5000 back: begin, edit and flush, change, end.
    let mut change = vm.invalidate(Span::sized(RAM + 0x5000, PAGE_SIZE), Why::Unmap);
    change.apply(&mut idle).settle();
    println!("gfn 5 is now {:?}; the host may free the frame", vm.translate(&mut idle, Gfn(5)));
    drop(change);
    drop(vcpu.enter(&mut idle, &mut Tlb)); // catches up before the guest runs again
    println!("{:?}", vm.stats());
    Ok(())
}
