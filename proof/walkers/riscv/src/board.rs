//! QEMU's `virt` board: entry, serial line, end.

use core::arch::global_asm;
use core::fmt::{self, Write};
use core::ops::Range;
use core::ptr::with_exposed_provenance_mut;

/// Memory for the engine and the judge.
pub const HEAP: Range<usize> = 0x8100_0000..0x8300_0000;
/// Memory for guest frames.
pub const PATTERN: Range<u64> = 0x8800_0000..0x8900_0000;

/// The 16550's transmit register.
const SERIAL: usize = 0x1000_0000;
/// The "test finisher": a write to it ends QEMU.
const FINISHER: usize = 0x10_0000;

global_asm!(
    ".section .text.start, \"ax\"",
    ".global _start",
    "_start:",
    // One hart runs; the others sleep for ever.
    "    csrr t0, mhartid",
    "    beqz t0, 1f",
    "0:  wfi",
    "    j 0b",
    "1:  la sp, stack_top",
    "    la t0, bss_start",
    "    la t1, bss_end",
    "2:  bgeu t0, t1, 3f",
    "    sd zero, 0(t0)",
    "    addi t0, t0, 8",
    "    j 2b",
    "3:  la t0, unexpected",
    "    csrw mtvec, t0",
    "    call enter",
    ".balign 4",
    "unexpected:",
    "    la sp, stack_top",
    "    csrr a0, mcause",
    "    csrr a1, mepc",
    "    csrr a2, mtval",
    "    call unexpected_trap",
);

/// Handles a trap that no access of a guest has caused.
#[unsafe(no_mangle)]
extern "C" fn unexpected_trap(cause: usize, at: usize, value: usize) -> ! {
    let _ = writeln!(Serial, "unexpected trap {cause:#x} at {at:#x}, value {value:#x}");
    end(false)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let _ = writeln!(Serial, "{info}");
    end(false)
}

/// The serial line, which is never busy.
pub struct Serial;

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: the transmit register of this board.
            unsafe { with_exposed_provenance_mut::<u8>(SERIAL).write_volatile(byte) };
        }
        Ok(())
    }
}

/// Ends the emulator.
pub fn end(good: bool) -> ! {
    let word = if good { 0x5555 } else { 1 << 16 | 0x3333 };
    // SAFETY: the finisher of this board.
    unsafe { with_exposed_provenance_mut::<u32>(FINISHER).write_volatile(word) };
    loop {
        core::hint::spin_loop();
    }
}
