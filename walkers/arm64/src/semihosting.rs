//! What the emulator does for us when asked by a certain `HLT`: its command line, and the end of the run (Arm,
//! "Semihosting for `AArch32` and `AArch64`"). QEMU wants `-semihosting`.

use core::arch::asm;

const GET_CMDLINE: u64 = 0x15;
const EXIT_EXTENDED: u64 = 0x20;
/// The reason of an exit that has a status: the application asked for it.
const APPLICATION_EXIT: u64 = 0x2_0026;

/// One call: its number, and the words that it reads and writes.
fn call(number: u64, block: &mut [u64; 2]) -> u64 {
    let answer;
    // SAFETY: the emulator reads and writes the block, and what the block points to: memory that the caller owns.
    unsafe { asm!("hlt #0xf000", inout("x0") number => answer, in("x1") block, options(nostack)) };
    answer
}

/// What follows the program's name on the emulator's command line; empty where it cannot be said.
pub fn command_line(buffer: &mut [u8]) -> &str {
    let mut block = [buffer.as_mut_ptr().expose_provenance() as u64, buffer.len() as u64];
    let failed = call(GET_CMDLINE, &mut block) != 0;
    let length = if failed { 0 } else { block[1] as usize };
    let text = buffer.get(..length).and_then(|text| str::from_utf8(text).ok()).unwrap_or_default();
    text.trim_end_matches('\0')
}

/// Ends the run; the emulator's exit status is `status`.
pub fn exit(status: u64) -> ! {
    call(EXIT_EXTENDED, &mut [APPLICATION_EXIT, status]);
    // Not asked for, or not understood: the text that was printed has said how it went.
    loop {
        aarch64_cpu::asm::wfe();
    }
}
