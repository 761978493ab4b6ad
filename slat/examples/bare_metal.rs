//! The parts that a hypervisor without `std` supplies: table memory, a token and interrupts of each processor. It runs as a program.
//! Copy it; REPLACE marks the stubs. Run it: `cargo run -p slat --example bare_metal`.
extern crate alloc; // REPLACE: with `#![no_std]`, and a `#[global_allocator]` of your own
use alloc::alloc::{Layout, alloc, dealloc};
use core::ptr::{NonNull, with_exposed_provenance_mut};
use slat::table::{Own, TablesOf, formats::Ept4};
use slat::*;

/// A kernel that sees physical address p at p + `OFFSET`.
struct Kernel;
const OFFSET: usize = 1 << 12;
// SAFETY: an allocator's blocks, aligned to their size; `at` is the inverse of the frame's computation.
unsafe impl TableMemory for Kernel {
    fn lend(&self, pages: usize) -> Option<(NonNull<u8>, Pfn)> {
        let block = Layout::from_size_align(pages << 12, pages << 12).ok()?;
        // SAFETY: it has a size. REPLACE: your frame allocator.
        let first = NonNull::new(unsafe { alloc(block) })?;
        Some((first, Pfn((first.as_ptr().expose_provenance() - OFFSET) as u64 >> PAGE_SHIFT)))
    }
    unsafe fn take_back(&self, first: NonNull<u8>, _: Pfn, pages: usize) {
        // SAFETY: lent above in this layout, and no longer used.
        unsafe { dealloc(first.as_ptr(), Layout::from_size_align_unchecked(pages << 12, pages << 12)) }
    }
    fn at(&self, frame: Pfn) -> NonNull<u8> {
        NonNull::new(with_exposed_provenance_mut(frame.address() as usize + OFFSET))
            .expect("no table is there")
    }
}
impl Host for Kernel {
    fn tables() -> impl TablesOf<Self> {
        Own
    }
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), ..HostPage::PLAIN }) // REPLACE: static memory: frame = address
    }
    fn kick(&self, _vcpu: VcpuId) {} // REPLACE: a fence (x2APIC: MFENCE; LFENCE), then an IPI to its processor
}
/// This processor.
struct Cpu {
    number: u32, // it runs the vCPU of this number
    exits: u64,
}
impl Translations for Cpu {
    fn cpu(&self) -> CpuId {
        CpuId(self.number.into())
    }
    fn flush_all(&mut self) {} // REPLACE: INVEPT
    fn flush(&mut self, _gfns: Span<Gfn>) {} // REPLACE: INVEPT, which has no range
}
impl Processor for Cpu {
    type Exit = Option<Fault>; // REPLACE: the exit reason
    fn run(&mut self, _tables: Pfn, _: &mut InGuest<'_>) -> Option<Fault> {
        self.exits += 1; // REPLACE: EPTP from `_tables`, VMRESUME; an interrupt ends it
        (self.exits < 3).then_some(Fault { gpa: Gpa(self.exits << 12), access: Access::Write })
    }
    fn block_interrupts(&mut self) {} // REPLACE: CLI, as `asm!` without `nomem`
    fn unblock_interrupts(&mut self) {} // REPLACE: STI
}
/// The entry of each processor.
fn processor(number: u32, vm: &Vm<Ept4, Kernel>) -> Option<()> {
    // SAFETY: called once on this processor, outside of the engine. No other token of it exists.
    let mut idle = unsafe { Idle::assume() };
    let (mut vcpu, mut cpu) = (vm.vcpu(VcpuId(number))?, Cpu { number, exits: 0 });
    while let Some(fault) = vcpu.run(&mut idle, &mut cpu) {
        let Next::Resume(_) = vcpu.fault(&mut idle, fault).ok()? else { return None }; // REPLACE: a device
    }
    Some(())
}
fn main() {
    let vm = Vm::<Ept4, _>::builder(Kernel).vcpus(2).build().expect("memory for a table");
    // SAFETY: the token of the boot processor, used before it runs a vCPU.
    let mut idle = unsafe { Idle::assume() };
    let ram = Slot::new(SlotId(0), Gfn(0), 512, Hva(0x4000_0000));
    vm.memory().commit(&mut idle, |tx| tx.create(ram)).expect("nothing overlaps");
    drop(idle);
    (0..2).for_each(|number| processor(number, &vm).expect("it halts")); // REPLACE: each on its processor
    println!("each processor mapped a page: {:?} leaves", vm.stats().leaves);
}
