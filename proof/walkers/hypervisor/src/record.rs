//! Writes every fault in RAM to the debug console (port 0xe9), in the format of a memory trace that `slat run` reads:
//! ` L 0123abcd,8` for a load, ` S …` for a store, `I  …` for a fetch. The address is guest-physical.

use core::fmt::{self, Write};
use slat::{Access, Gpa};
use slat_walker_x86::cpu;

const PORT: u16 = 0xe9;

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: the debug console hands bytes on, and touches no memory.
            unsafe { cpu::outb(PORT, byte) };
        }
        Ok(())
    }
}

/// Writes one fault. The access's size is not known; eight bytes at the aligned address stay within a page.
pub fn tell(gpa: Gpa, access: Access) {
    let kind = match access {
        Access::Read => " L",
        Access::Write => " S",
        Access::Fetch => "I ",
    };
    // Writing to a port does not fail.
    let _ = writeln!(Console, "{kind} {:08x},8", gpa.0 & !7);
}
