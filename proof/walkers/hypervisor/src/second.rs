//! The second processor: it waits in the hypervisor until the guest starts it, and is the second vCPU from then on.

use crate::guest_loop::{Cpu, Guest};
use crate::{Error, finish};
use core::ptr::null_mut;
use core::sync::atomic::{
    AtomicPtr, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use slat::{Format, Idle, VcpuId};
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

/// Starts its vCPU, if it has not started.
pub fn start(page: u8) {
    // ORDER(startup): Release; pairs with the Acquire in `second`, which finds the guest, and what it has written.
    STARTUP.store(STARTED | u32::from(page), Release);
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
