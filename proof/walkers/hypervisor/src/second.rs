//! The second processor: it waits in the hypervisor until the guest starts it by a store to its interrupt controller.
//! From then on it is the second vCPU.

use crate::apic;
use crate::error::{Error, finish};
use crate::guest_loop::{Cpu, Guest};
use crate::instruction::{Code, Kind, Move};
use crate::layout::Layout;
use alloc::format;
use core::ptr::null_mut;
use core::sync::atomic::{
    AtomicPtr, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use slat::{Format, Gpa, Idle, VcpuId};
use slat_walker_x86::processor::{Processor, Registers};
use slat_walker_x86::smp;

/// The guest of the second processor.
static GUEST: AtomicPtr<()> = AtomicPtr::new(null_mut());
/// The page at which it begins and [`STARTED`], or 0 until the guest has started it.
static STARTUP: AtomicU32 = AtomicU32::new(0);
const STARTED: u32 = 0x100;

/// Starts the second processor, which waits here. Call this once.
pub fn bring<P: Processor, F: Format>(guest: &'static Guest<F>) -> Result<(), Error> {
    GUEST.store((&raw const *guest).cast_mut().cast(), Relaxed);
    if smp::start_second(second::<P, F>) { Ok(()) } else { Err("there is no second processor".into()) }
}

fn second<P: Processor, F: Format>() -> ! {
    let page = loop {
        // ORDER(startup): Acquire; pairs with the Release in `start`.
        match STARTUP.load(Acquire) {
            0 => core::hint::spin_loop(),
            startup => break startup as u8,
        }
    };
    // SAFETY: `bring` put a guest of this format there, which stays.
    let guest = unsafe { &*GUEST.load(Relaxed).cast::<Guest<F>>() };
    // SAFETY: the only token of this processor.
    let mut idle = unsafe { Idle::assume() };
    let mut run = || {
        let processor = P::started(page).ok_or("no guest of this maker's begins in real mode here")?;
        Cpu::new(guest, VcpuId(1), processor, Registers::default())?.run(&mut idle)
    };
    finish(run())
}

/// Starts its vCPU, if it has not started.
fn start(page: u8) {
    // ORDER(startup): Release; pairs with the Acquire in `second`, which finds the guest, and what it has written.
    STARTUP.store(STARTED | u32::from(page), Release);
}

impl<P: Processor, F: Format> Cpu<'_, P, F> {
    /// Handles a write to the interrupt controller before the guest has started its second processor.
    pub fn write_apic(&mut self, idle: &mut Idle, gpa: Gpa) -> Result<(), Error> {
        let rip = self.processor.rip();
        let (host, tables) = (self.guest.vm.host(), self.processor.tables());
        let code = Code { host, tables, in_l1: &Some, at: rip };
        let found = Move::of(code, &self.registers).and_then(|found| {
            if let Kind::Store(value) = found.kind { Some((found.next, value)) } else { None }
        });
        let (next, value) = found.ok_or_else(|| {
            format!(
                "not supported: at {rip:#x} the guest accesses {gpa:x?} of its interrupt controller by an instruction \
                 that is no 32-bit store of 64-bit code: {:02x?}",
                code.bytes()
            )
        })?;
        self.processor.set_rip(next);
        match apic::Write::of(gpa, value) {
            apic::Write::Init => {}
            apic::Write::Startup(page) => {
                start(page);
                self.guest.vm.memory().commit(idle, |tx| {
                    tx.delete(Layout::apic().id)?;
                    tx.create(Layout::apic())
                })?;
            }
            apic::Write::Other => apic::write(gpa, value),
        }
        Ok(())
    }
}
