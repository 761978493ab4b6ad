//! The smallest hypervisor: one vCPU, RAM, a ROM and an exit handler. Copy it; REPLACE marks the stubs.

use slat::table::formats::Ept4;
use slat::{
    Access, CpuId, Done, Fault, Gfn, Go, Gpa, Host, HostError, HostPage, Hva, Idle, PAGE_SIZE, Pfn, Slot,
    SlotId, Span, TableMemory, Translations, Vcpu, VcpuId, Vm, Why,
};

/// REPLACE: your memory. Here host address `RAM` + x is frame 0x9000 + x / 4096, for ever.
struct Machine;
const RAM: Hva = Hva(0x1_0000_0000);

// SAFETY: the defaults take table pages from the global allocator and keep the contract.
// REPLACE on bare metal: all four functions, so that a table's frame number is the one that the hardware needs.
unsafe impl TableMemory for Machine {}
impl Host for Machine {
    fn resolve(&self, _may_sleep: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        let offset = hva.0.checked_sub(RAM.0).ok_or(HostError::Fault)?;
        Ok(HostPage { pfn: Pfn(0x9000 + offset / PAGE_SIZE), ..HostPage::PLAIN })
    }
    fn kick(&self, vcpu: VcpuId) {
        println!("  IPI to vCPU {}", vcpu.0); // REPLACE: make it leave the guest
    }
}

/// REPLACE: INVEPT, on the processor that this thread is on. Called when a vCPU enters the guest, or answers a kick.
struct Tlb(CpuId);
impl Translations for Tlb {
    fn cpu(&self) -> CpuId {
        self.0 // a vCPU that comes from another processor flushes everything here
    }
    fn flush_all(&mut self) {
        println!("  INVEPT");
    }
    fn flush(&mut self, gfns: Span<Gfn>) {
        println!("  INVEPT for {gfns:?}");
    }
}

/// REPLACE: the body of the loop around VMLAUNCH. Here the guest accesses `gpa` at once, which is a violation.
fn run(vcpu: &mut Vcpu<Ept4, Machine>, idle: &mut Idle, gpa: u64, access: Access) {
    let mut tlb = Tlb(CpuId(0)); // REPLACE: pin the thread (until the guard is dropped), and ask which processor it is on
    // Carries out pending flushes. REPLACE `|| ()`: disable interrupts, so a kick waits. If one came first, enter again.
    let Go::In(guest, ()) = vcpu.enter(idle, &mut tlb).go(|| ()) else { return run(vcpu, idle, gpa, access) };
    drop(guest); // VMLAUNCH … EPT violation: out of the guest, with GUEST_PHYSICAL_ADDRESS and EXIT_QUALIFICATION
    match vcpu.fault(idle, Fault { gpa: Gpa(gpa), access }) {
        Ok(Done::Mmio) => println!("{gpa:#x} {access:?}: no memory to do that to: emulate a device"),
        Ok(done) => println!("{gpa:#x} {access:?}: {done:?}, run it again"),
        Err(error) => println!("{gpa:#x} {access:?}: {error}: stop the guest"),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut idle = Idle::take().ok_or("one token per thread")?;
    let vm = Vm::<Ept4, _>::builder(Machine).vcpus(1).build()?;
    println!("EPTP points to frame {:#x}", vm.root().0); // REPLACE: into the VMCS
    // 2 MiB of RAM at guest address 0, a ROM of 64 KiB below 4 GiB: gfn, pages, and the host address behind them.
    let ram = Slot::new(SlotId(0), Gfn(0), 512, RAM);
    let rom = Slot::new(SlotId(1), Gfn(0xf_fff0), 16, RAM + 0x8000_0000).readonly();
    vm.slots().commit(&mut idle, |tx| tx.create(ram).and_then(|()| tx.create(rom)))?;

    let mut vcpu = vm.vcpu(VcpuId(0)).ok_or("another thread runs vCPU 0")?;
    run(&mut vcpu, &mut idle, 0xffff_fff0, Access::Fetch); // the reset vector
    run(&mut vcpu, &mut idle, 0xffff_fff0, Access::Write); // a ROM stays as it is
    run(&mut vcpu, &mut idle, 0x5008, Access::Write);

    // Withdraw write permission, to see the next store to the page: it faults, and gets the permission back.
    vm.write_protect(&mut idle, Span::sized(Gfn(5), 1)).settle();
    run(&mut vcpu, &mut idle, 0x5010, Access::Write); // REPLACE: note that it is dirty

    // The host wants the page: begin, edit and flush, change its own table and free the frame, end.
    let mut change = vm.invalidate(Span::sized(RAM + 0x5000, PAGE_SIZE), Why::Unmap);
    change.apply(&mut idle).settle();
    println!("gfn 5 is {:?}; the host may free the frame", vm.translate(&mut idle, Gfn(5)));
    drop(change);
    run(&mut vcpu, &mut idle, 0x5008, Access::Read); // asks the host again
    println!("{:?}", vm.stats());
    Ok(())
}
