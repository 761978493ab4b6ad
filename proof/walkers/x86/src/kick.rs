//! A kick by another processor: a non-maskable interrupt (NMI), which makes a guest exit.
//!
//! ```text
//! sender    smp::kick_other ──▶ NMI
//! receiver  in its guest        the guest comes out; `take` lets the NMI in, whose handler does nothing
//!           out of it           the NMI waits (AMD's GIF is clear), and brings the guest out as soon as it is in
//! ```
//! So from [`wait_for_guest`] on a kick is never lost, and never interrupts the hypervisor.

use core::arch::{asm, global_asm};

global_asm!(".section .text.kick, \"ax\"", ".global kick_handler", "kick_handler: iretq");

unsafe extern "C" {
    fn kick_handler();
}

/// The vector of an NMI.
const NMI: usize = 2;
/// Our code's segment, as `boot.s` has it.
const CODE: u64 = 0x10;
/// Present, an interrupt gate of 64-bit code.
const GATE: u64 = 0x8e00;

/// The processor's interrupt table: gates of two words.
#[repr(C, align(16))]
struct Gates([[u64; 2]; NMI + 1]);

/// The operand of `lidt`.
#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

/// Makes NMIs wait until this processor runs its guest, or [`take`]s one.
///
/// # Safety
/// SVM is on for this processor.
pub(crate) unsafe fn wait_for_guest() {
    let address = kick_handler as *const () as u64;
    let mut gates = alloc::boxed::Box::new(Gates([[0; 2]; NMI + 1]));
    gates.0[NMI] =
        [address & 0xffff | CODE << 16 | GATE << 32 | (address >> 16 & 0xffff) << 48, address >> 32];
    let limit = (size_of::<Gates>() - 1) as u16;
    // Leaked: the processor uses it forever.
    let pointer = Pointer { limit, base: alloc::boxed::Box::leak(gates).0.as_ptr() as u64 };
    // SAFETY: the gates are whole and stay; the caller promises that SVM is on.
    unsafe { asm!("lidt [{}]", "clgi", in(reg) &raw const pointer, options(nostack)) }
}

/// Takes the waiting NMI.
///
/// # Safety
/// After [`wait_for_guest`], with interrupts off.
pub(crate) unsafe fn take() {
    // SAFETY: nothing but an NMI comes in, and its handler returns at once; the code keeps nothing below its stack.
    unsafe { asm!("stgi", "nop", "clgi") }
}
