//! The smallest hypervisor: one vCPU, RAM, a ROM and an exit handler. Copy it; REPLACE marks the stubs.

use slat::table::formats::Ept4;
use slat::{
    Access, CpuId, Emulate, Fault, FaultError, Gfn, Go, Gpa, Host, HostError, HostPage, Hva, Idle, Next,
    PAGE_SIZE, Pfn, Slot, SlotId, Span, Translations, Vcpu, VcpuId, Vm, Why,
};

/// REPLACE: your memory. Here host address `RAM` + x is frame 0x9000 + x / 4096, for ever. Tables are on the heap: on bare
/// metal also implement `TableMemory` and `Host::tables`, unless memory is mapped one to one.
struct Machine;
const RAM: Hva = Hva(0x1_0000_0000);
impl Host for Machine {
    fn resolve(&self, _may_sleep: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        let offset = hva.0.checked_sub(RAM.0).ok_or(HostError::Fault)?;
        Ok(HostPage { pfn: Pfn(0x9000 + offset / PAGE_SIZE), ..HostPage::PLAIN })
    }
    fn kick(&self, _vcpu: VcpuId) {} // REPLACE: an IPI that makes it leave the guest
}

/// REPLACE: INVEPT, on the processor that this thread is on. Called when a vCPU enters the guest, or answers a kick.
struct Tlb(CpuId);
impl Translations for Tlb {
    fn cpu(&self) -> CpuId {
        self.0 // a vCPU that comes from another processor flushes everything here
    }
    fn flush_all(&mut self) {} // INVEPT
    fn flush(&mut self, _gfns: Span<Gfn>) {} // INVEPT
}

/// REPLACE: VMLAUNCH with this EPTP. Here the guest makes one access. Returns whether that is an EPT violation.
fn violates(vm: &Vm<Ept4, Machine>, idle: &mut Idle, eptp: Pfn, Fault { gpa, access }: Fault) -> bool {
    assert_eq!(eptp, vm.memory().root(), "the processor walks the current tables");
    vm.memory().translate(idle, gpa.gfn()).is_none_or(|found| !found.leaf.perms.allows(access))
}

/// Runs the guest until it has made the access, or until the caller must act before it can.
fn run(vcpu: &mut Vcpu<Ept4, Machine>, idle: &mut Idle, fault: Fault) -> Result<Option<Next>, FaultError> {
    let mut tlb = Tlb(CpuId(0)); // REPLACE: pin the thread (until the guard is dropped), and ask which processor it is on
    loop {
        let ready = vcpu.enter(idle, &mut tlb); // carries out pending flushes
        let eptp = ready.root(); // at each entry: `zap_all` replaces the root. REPLACE: into the VMCS
        // REPLACE `|| ()`: disable interrupts, so that a kick waits. If one came first, enter again.
        let Go::In(guest, ()) = ready.go(|| ()) else { continue };
        drop(guest); // out of the guest, with GUEST_PHYSICAL_ADDRESS and EXIT_QUALIFICATION
        if !violates(vcpu.vm(), idle, eptp, fault) {
            return Ok(None);
        }
        match vcpu.fault(idle, fault)? {
            Next::Resume(_) => {} // the guest repeats the access
            // Mmio: emulate a device. WriteTracked: `emulate_store`. RingFull: harvest the ring. MemoryFault:
            // `set_private`, or stop. Pending: wait for the token. NeedsPage: provide the page.
            act => return Ok(Some(act)),
        }
    }
}

/// Makes a VM, and lets its guest access memory.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut idle = Idle::take().ok_or("one token per thread")?;
    let vm = Vm::<Ept4, _>::builder(Machine).vcpus(1).build()?;
    // 2 MiB of RAM at guest address 0, a ROM of 64 KiB below 4 GiB: gfn, pages, and the host address behind them.
    let ram = Slot::new(SlotId(0), Gfn(0), 512, RAM);
    let rom = Slot::new(SlotId(1), Gfn(0xf_fff0), 16, RAM + 0x8000_0000).readonly();
    vm.memory().commit(&mut idle, |tx| tx.create(ram).and_then(|()| tx.create(rom)))?;
    let mut vcpu = vm.vcpu(VcpuId(0)).ok_or("another thread runs vCPU 0")?;
    let mut access = |idle: &mut Idle, gpa, access| run(&mut vcpu, idle, Fault { gpa: Gpa(gpa), access });
    assert_eq!(access(&mut idle, 0xffff_fff0, Access::Fetch)?, None); // the reset vector
    assert_eq!(access(&mut idle, 0xffff_fff0, Access::Write)?, Some(Next::Emulate(Emulate::ReadOnly))); // a ROM stays as it is
    assert_eq!(access(&mut idle, 0x5008, Access::Write)?, None);
    // The host wants the page: begin, edit and flush; it changes its own table and frees the frame; end.
    vm.change(&mut idle, Span::sized(RAM + 0x5000, PAGE_SIZE), Why::Unmap, |_| {}); // REPLACE: in the closure
    vm.zap_all(&mut idle)?; // all of the guest, by a new root
    assert_eq!(access(&mut idle, 0x5008, Access::Read)?, None); // asks the host again
    println!("{:#?}", vm.stats());
    Ok(())
}
