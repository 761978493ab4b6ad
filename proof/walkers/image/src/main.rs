//! The smallest hypervisor without `std`, for its size: it calls what `slat/examples/embed.rs` calls, and contains nothing
//! else. CI links it and measures its text. It has no entry code, and no test runs it.
#![no_std]
#![no_main]

extern crate alloc;

use core::alloc::{GlobalAlloc, Layout};
use core::hint::black_box;
use core::panic::PanicInfo;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use slat::table::formats::Ept4;
use slat::{
    Access, Fault, Gfn, Gpa, Host, HostError, HostPage, Hva, Idle, InGuest, Next, PAGE_SIZE, Pfn, Processor,
    Slot, SlotId, Span, Translations, VcpuId, Vm, Why,
};

/// An allocator that never reuses a block.
struct Bump(AtomicUsize);

const HEAP: usize = 1 << 20;
#[repr(align(4096))]
struct Heap(#[expect(dead_code, reason = "reached by address")] [u8; HEAP]);
static mut MEMORY: Heap = Heap([0; HEAP]);

// SAFETY: each block is a part of `MEMORY` that no other block has.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let bytes = layout.size() + layout.align();
        let start = self.0.fetch_add(bytes, Relaxed);
        if start + bytes > HEAP {
            return null_mut();
        }
        let base = (&raw mut MEMORY).cast::<u8>();
        // SAFETY: within `MEMORY`, as checked.
        unsafe { base.add((start + layout.align()) & !(layout.align() - 1)) }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: Bump = Bump(AtomicUsize::new(0));

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// Host address `RAM` + x is frame 0x9000 + x / 4096.
struct Machine;
const RAM: Hva = Hva(0x1_0000_0000);
impl Host for Machine {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        let offset = hva.0.checked_sub(RAM.0).ok_or(HostError::Fault)?;
        Ok(HostPage { pfn: Pfn(0x9000 + offset / PAGE_SIZE), ..HostPage::PLAIN })
    }
    fn kick(&self, vcpu: VcpuId) {
        black_box(vcpu);
    }
}

/// A processor that may exit with any access.
struct Vmx;
impl Translations for Vmx {
    fn flush_all(&mut self) {
        black_box(0);
    }
    fn flush(&mut self, gfns: Span<Gfn>) {
        black_box(gfns);
    }
}
impl Processor for Vmx {
    type Exit = Option<Fault>;
    fn run(&mut self, tables: Pfn, _: &mut InGuest<'_>) -> Option<Fault> {
        black_box(Some(Fault { gpa: Gpa(tables.0), access: Access::Write }))
    }
}

fn run(idle: &mut Idle) -> Option<()> {
    let vm = Vm::<Ept4, _>::builder(Machine).vcpus(1).build().ok()?;
    let ram = Slot::new(SlotId(0), Gfn(0), 512, RAM);
    let rom = Slot::new(SlotId(1), Gfn(0xf_fff0), 16, RAM + (2 << 30)).readonly();
    vm.memory().commit(idle, |tx| tx.create(ram).and_then(|()| tx.create(rom))).ok()?;
    let mut vcpu = vm.vcpu(VcpuId(0))?;
    while let Some(fault) = vcpu.run(idle, &mut Vmx) {
        match vcpu.fault(idle, fault).ok()? {
            Next::Resume(_) => vm.zap_all(idle).ok()?,
            Next::Emulate(why) => _ = black_box(why),
            Next::Leave(_) => return None,
        }
    }
    vm.change(idle, Span::sized(RAM, PAGE_SIZE), Why::Unmap, |_| {});
    black_box(vm.stats());
    Some(())
}

/// The image's first instruction.
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    // SAFETY: the only token of the only processor.
    let mut idle = unsafe { Idle::assume() };
    loop {
        black_box(run(&mut idle));
    }
}
