//! The start of the second processor: INIT, STARTUP, and a function on a stack of its own; and kicks.

use crate::cpu;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

unsafe extern "C" {
    static trampoline_start: u8;
    static trampoline_end: u8;
    static mut second_stack: u64;
}

/// Start address of the second processor, also in `boot.s`. STARTUP's vector is the page's number.
const TRAMPOLINE: usize = 0x8000;
const STACK_BYTES: usize = 64 << 10;

/// The local interrupt controller's registers.
const SPURIOUS: *mut u32 = 0xfee0_00f0 as *mut u32;
const COMMAND: *mut u32 = 0xfee0_0300 as *mut u32;
const ALL_BUT_SELF_INIT: u32 = 0x000c_4500;
const ALL_BUT_SELF_NMI: u32 = 0x000c_4400;
const ALL_BUT_SELF_STARTUP: u32 = 0x000c_4600 | (TRAMPOLINE >> 12) as u32;

static ENTRY: AtomicUsize = AtomicUsize::new(0);
static AWAKE: AtomicBool = AtomicBool::new(false);

/// Starts the second processor in `main`; returns true when it is awake, or false if there is none. Overwrites a page
/// below 1 MiB (0x8000).
///
/// # Panics
/// At the second call.
pub fn start_second(main: fn() -> !) -> bool {
    if cpu::processors() < 2 {
        return false;
    }
    assert!(ENTRY.swap(main as usize, Ordering::Relaxed) == 0, "the second processor runs already");
    let stack = Vec::leak(alloc::vec![0_u64; STACK_BYTES / 8]);
    let (start, end) = (&raw const trampoline_start, &raw const trampoline_end);
    // SAFETY: page 8 is ordinary memory that nothing of ours lives in; the second processor sleeps until STARTUP, so
    // nothing else has the stack's address; the interrupt controller is where every x86 machine begins with it.
    unsafe {
        core::ptr::copy_nonoverlapping(start, TRAMPOLINE as *mut u8, end as usize - start as usize);
        (&raw mut second_stack).write_volatile(stack.as_ptr_range().end as u64);
        SPURIOUS.write_volatile(0x1ff);
        COMMAND.write_volatile(ALL_BUT_SELF_INIT);
        for _ in 0..100_000 {
            core::hint::spin_loop();
        }
        COMMAND.write_volatile(ALL_BUT_SELF_STARTUP);
    }
    // ORDER(awake): Acquire; pairs with the Release of the second processor.
    while !AWAKE.load(Ordering::Acquire) {
        core::hint::spin_loop();
    }
    true
}

/// Kicks the other processor, which leaves its guest after [`exit_on_kick`](crate::processor::Processor::exit_on_kick).
/// The command addresses all processors but the sender, so it leaves the guest's interrupt addresses alone.
pub fn kick_other() {
    // SAFETY: as in `start_second`; the command reaches the other processor only, which handles or holds back NMIs.
    unsafe { COMMAND.write_volatile(ALL_BUT_SELF_NMI) };
}

/// Called by the boot code on the second processor's own stack.
#[unsafe(no_mangle)]
extern "C" fn second_entry() -> ! {
    // ORDER(awake): Release; pairs with `start_second`.
    AWAKE.store(true, Ordering::Release);
    // SAFETY: written by `start_second`, before STARTUP, from a function of this type.
    let main: fn() -> ! = unsafe { core::mem::transmute(ENTRY.load(Ordering::Relaxed)) };
    main()
}
