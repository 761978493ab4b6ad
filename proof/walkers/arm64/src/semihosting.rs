//! Semihosting: a certain `HLT` asks the emulator for its command line, or ends the run (Arm, "Semihosting for
//! `AArch32` and `AArch64`"). QEMU needs `-semihosting`.

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

/// Returns the emulator's command line after the program's name; empty if it is not available.
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
    // Semihosting is off: the printed text has the verdict.
    loop {
        aarch64_cpu::asm::wfe();
    }
}
