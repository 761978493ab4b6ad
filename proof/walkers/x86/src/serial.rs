//! The first serial port, which every emulator turns into text.

use crate::cpu::{inb, outb};
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

const PORT: u16 = 0x3f8;
const LINE_CONTROL: u16 = PORT + 3;
const LINE_STATUS: u16 = PORT + 5;
/// The next byte may be written.
const READY: u8 = 0x20;
/// Everything has been sent.
const DRAINED: u8 = 0x40;

/// Whether a processor is printing.
static PRINTING: AtomicBool = AtomicBool::new(false);

struct Port;

impl Write for Port {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            while status() & READY == 0 {}
            // SAFETY: the UART reads and writes no memory.
            unsafe { outb(PORT, byte) };
        }
        Ok(())
    }
}

fn status() -> u8 {
    // SAFETY: reading the status makes the UART do nothing.
    unsafe { inb(LINE_STATUS) }
}

/// Sets eight bits for each character; Bochs begins with five.
pub(crate) fn init() {
    // SAFETY: as above.
    unsafe { outb(LINE_CONTROL, 3) };
}

/// Waits until everything printed has been sent, because an emulator may end before its buffer is empty.
pub(crate) fn drain() {
    while status() & DRAINED == 0 {}
}

/// Takes the port from the processor that prints, for the last line of a program.
pub(crate) fn seize() {
    PRINTING.store(false, Ordering::Relaxed);
}

/// Prints one line; lines of two processors do not mix. See [`println!`](crate::println).
pub fn print_line(line: fmt::Arguments<'_>) {
    // ORDER(print): Acquire here, Release below: the port is one processor's at a time.
    while PRINTING.swap(true, Ordering::Acquire) {
        core::hint::spin_loop();
    }
    let _ = Port.write_fmt(format_args!("{line}\n"));
    PRINTING.store(false, Ordering::Release);
}

/// Prints one line on the serial port.
#[macro_export]
macro_rules! println {
    ($($line:tt)*) => { $crate::serial::print_line(format_args!($($line)*)) };
}
