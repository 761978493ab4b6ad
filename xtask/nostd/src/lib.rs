//! The engine without a standard library: what a kernel links.
//!
//! Everything that a kernel would call is called here, so that all of it is compiled and linked.
#![no_std]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use slat::table::formats::{Ept4, Npt5};
use slat::*;

/// A kernel's first allocator: a block that is handed out once.
struct Bump {
    block: UnsafeCell<[u8; SIZE]>,
    used: AtomicUsize,
}

const SIZE: usize = 8 << 20;

// SAFETY: each byte is handed out once.
unsafe impl Sync for Bump {}

// SAFETY: aligned, disjoint, and inside the block, or null.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let base = self.block.get() as usize;
        let mut used = self.used.load(Relaxed);
        loop {
            let start = (base + used).next_multiple_of(layout.align()) - base;
            let end = start + layout.size();
            if end > SIZE {
                return core::ptr::null_mut();
            }
            match self.used.compare_exchange(used, end, Relaxed, Relaxed) {
                // SAFETY: inside the block.
                Ok(_) => return unsafe { self.block.get().cast::<u8>().add(start) },
                Err(now) => used = now,
            }
        }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static HEAP: Bump = Bump { block: UnsafeCell::new([0; SIZE]), used: AtomicUsize::new(0) };

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The prebuilt `alloc` refers to it; with `panic = "abort"` nobody calls it.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

struct Identity;

// SAFETY: the defaults keep the contract.
unsafe impl TableMemory for Identity {}

impl Host for Identity {
    fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
        Ok(HostPage { pfn: Pfn(hva.0 >> PAGE_SHIFT), level: Level::M2, ..HostPage::PLAIN })
    }
}

struct NoTlb;

impl Translations for NoTlb {
    fn flush_all(&mut self) {}
    fn flush(&mut self, _: Span<Gfn>) {}
}

/// Builds a VM, maps and unmaps a page. Returns the frame that was mapped, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn slat_nostd() -> u64 {
    // SAFETY: called by one thread, which has no other token.
    let mut idle = unsafe { Idle::assume() };
    once::<Ept4>(&mut idle).and_then(|frame| Some(frame + once::<Npt5>(&mut idle)?)).unwrap_or(0)
}

fn once<F: Format>(idle: &mut Idle) -> Option<u64> {
    let vm = Vm::<F, _>::builder(Identity).vcpus(1).build().ok()?;
    let slot = Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30));
    vm.slots().commit(idle, |tx| tx.create(slot)).ok()?;
    let mut vcpu = vm.vcpu(VcpuId(0))?;
    let Go::In(guest, ()) = vcpu.enter(idle, &mut NoTlb).go(|| ()) else { return None };
    drop(guest);
    vcpu.fault(idle, Fault { gpa: Gpa(0x5000), access: Access::Write }).ok()?;
    let frame = vm.translate(idle, Gfn(5))?.leaf.pfn.0;
    let mut change = vm.invalidate(slot.hvas(), Why::Unmap);
    change.apply(idle).settle();
    drop(change);
    vm.translate(idle, Gfn(5)).is_none().then_some(frame)
}
