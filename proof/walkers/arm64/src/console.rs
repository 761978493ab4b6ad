//! Lines of text on the serial port of QEMU's `virt` machine, a PL011.

use core::fmt::{self, Write};

/// The port's data register. The emulator's queue is never full.
const DATA: *mut u32 = core::ptr::without_provenance_mut(0x0900_0000);

/// The port.
pub struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: a device register, mapped as such; a store to it sends a byte and does nothing to memory.
            unsafe { DATA.write_volatile(u32::from(byte)) };
        }
        Ok(())
    }
}

/// One line.
pub fn line(text: fmt::Arguments<'_>) {
    // The port accepts everything; only a failing `Display` could return an error, and its line is then short.
    let _ = writeln!(Console, "{text}");
}

macro_rules! println {
    ($($text:tt)*) => { $crate::console::line(format_args!($($text)*)) };
}
pub(crate) use println;
