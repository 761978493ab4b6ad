//! Exceptions taken to EL2: the guest's exits, and fatal errors.
//!
//! One vector is expected: synchronous, from a lower level in `AArch64`, for a refused access of the guest and for its
//! `HVC`. It leads into [`guest_access`](crate::guest_access). Any other exception is a mistake of ours; it is printed,
//! and the run fails.

use crate::console::println;
use crate::semihosting;
use aarch64_cpu::asm::barrier::{self, isb};
use aarch64_cpu::registers::{ELR_EL2, ESR_EL2, FAR_EL2, Readable, VBAR_EL2, Writeable};
use core::arch::global_asm;

global_asm!(
    ".section .text.vectors, \"ax\"",
    ".balign 2048",
    ".global el2_vectors",
    "el2_vectors:",
    ".rept 8",                       // from EL2 itself
    "   .balign 128",
    "   mov x0, #(. - el2_vectors)",
    "   b   {unexpected}",
    ".endr",
    "   .balign 128",                // from EL1, synchronous
    "   b   guest_exit",
    ".rept 7",                       // from EL1, interrupts and errors; from AArch32
    "   .balign 128",
    "   mov x0, #(. - el2_vectors)",
    "   b   {unexpected}",
    ".endr",
    unexpected = sym unexpected,
);

unsafe extern "C" {
    static el2_vectors: [u32; 512];
}

/// Installs the vectors.
pub fn install() {
    VBAR_EL2.set((&raw const el2_vectors).addr() as u64);
    isb(barrier::SY);
}

extern "C" fn unexpected(vector: u64) -> ! {
    println!(
        "JUDGE FAILED: exception at EL2, vector {vector:#x}: ESR {:#x}, FAR {:#x}, ELR {:#x}",
        ESR_EL2.get(),
        FAR_EL2.get(),
        ELR_EL2.get()
    );
    semihosting::exit(1)
}

#[panic_handler]
fn panic(panic: &core::panic::PanicInfo<'_>) -> ! {
    println!("JUDGE FAILED: {panic}");
    semihosting::exit(1)
}
