//! Interrupts of the machine for guests that share a processor: the hypervisor takes them, because no guest may take
//! them all.
//!
//! [`begin`] fills the table of gates with handlers that set one bit each, and starts the local controller's timer.
//! Interrupts are off except in [`take`] and [`wait`].

use crate::cpu::ticks;
use core::arch::{asm, global_asm};

// Each handler has 16 bytes: it sets its bit in `interrupts_taken`.
global_asm!(
    ".section .bss.interrupts, \"aw\", @nobits",
    ".balign 8",
    "interrupts_taken: .zero 32",
    ".section .text.interrupts, \"ax\"",
    ".balign 16",
    ".global interrupt_handlers",
    "interrupt_handlers:",
    ".set vector, 0",
    ".rept 256",
    ".balign 16",
    "bts qword ptr [rip + interrupts_taken + 8 * (vector / 64)], vector % 64",
    "iretq",
    ".set vector, vector + 1",
    ".endr",
    ".global interrupts_taken",
);

unsafe extern "C" {
    static interrupt_handlers: u8;
    static mut interrupts_taken: [u64; 4];
}

const HANDLER_BYTES: u64 = 16;
/// Our code segment from `boot.s`.
const CODE: u64 = 0x10;
/// Present, an interrupt gate of 64-bit code.
const GATE: u64 = 0x8e00;

/// The local controller's registers at their address after reset.
const END: *mut u32 = 0xfee0_00b0 as *mut u32;
const SPURIOUS: *mut u32 = 0xfee0_00f0 as *mut u32;
const TIMER: *mut u32 = 0xfee0_0320 as *mut u32;
const LINE_0: *mut u32 = 0xfee0_0350 as *mut u32;
const LINE_1: *mut u32 = 0xfee0_0360 as *mut u32;
const COUNT: *mut u32 = 0xfee0_0380 as *mut u32;
const LEFT: *mut u32 = 0xfee0_0390 as *mut u32;
const DIVIDE: *mut u32 = 0xfee0_03e0 as *mut u32;
const ENABLED: u32 = 0x1ff;
/// Interrupts from the old controller, which supplies the vector.
const EXTERNAL: u32 = 0x700;
const MASKED: u32 = 1 << 16;
const PERIODIC: u32 = 1 << 17;
const DIVIDE_BY_1: u32 = 0b1011;

/// The timer's vector, above all of the old controller's.
const TICK: u8 = 0xfe;

/// Vectors, one bit each.
#[derive(Clone, Copy, Debug)]
pub struct Taken([u64; 4]);

impl Taken {
    /// Returns whether the timer's vector is set.
    pub fn is_tick(self) -> bool {
        self.0[3] >> (TICK - 192) & 1 == 1
    }

    /// Returns the vectors of the machine's devices.
    pub fn devices(self) -> impl Iterator<Item = u8> {
        (32..TICK).filter(move |vector| self.0[usize::from(vector / 64)] >> (vector % 64) & 1 == 1)
    }
}

/// Begins to take interrupts, with a timer interrupt every `period` ticks of the controller's clock: a nanosecond on
/// QEMU.
pub fn begin(period: u32) {
    #[repr(C, align(16))]
    struct Gates([[u64; 2]; 256]);
    #[repr(C, packed)]
    struct Pointer(u16, u64);
    let mut gates = alloc::boxed::Box::new(Gates([[0; 2]; 256]));
    let first = &raw const interrupt_handlers as u64;
    for (gate, address) in gates.0.iter_mut().zip((first..).step_by(HANDLER_BYTES as usize)) {
        *gate = [address & 0xffff | CODE << 16 | GATE << 32 | (address >> 16 & 0xffff) << 48, address >> 32];
    }
    // Leaked: the processor's for good.
    let gates = alloc::boxed::Box::leak(gates);
    let pointer = Pointer((size_of::<Gates>() - 1) as u16, gates.0.as_ptr() as u64);
    // SAFETY: the gates are whole and stay, and interrupts are off; the controller is where every x86 machine begins with it.
    unsafe {
        asm!("lidt [{}]", in(reg) &raw const pointer, options(nostack));
        SPURIOUS.write_volatile(ENABLED);
        LINE_0.write_volatile(EXTERNAL);
        LINE_1.write_volatile(MASKED);
        TIMER.write_volatile(u32::from(TICK) | PERIODIC);
        DIVIDE.write_volatile(DIVIDE_BY_1);
        COUNT.write_volatile(period);
    }
}

/// Measures the [ticks of the processor](crate::cpu::ticks) during at least `least` ticks of the controller's clock.
/// Returns both numbers. Call it before [`begin`], and before a guest has the controller.
pub fn ticks_in(least: u32) -> (u64, u64) {
    // SAFETY: as in `begin`; the timer interrupts nothing, and stands still afterwards.
    unsafe {
        TIMER.write_volatile(MASKED);
        DIVIDE.write_volatile(DIVIDE_BY_1);
        COUNT.write_volatile(u32::MAX);
    }
    let (first, started) = both_clocks();
    let (left, ended) = loop {
        let now = both_clocks();
        if first - now.0 >= least {
            break now;
        }
    };
    // SAFETY: as above.
    unsafe { COUNT.write_volatile(0) };
    (ended - started, u64::from(first - left))
}

/// Reads the timer's remaining count, and the processor's ticks at that time. Takes the quickest of several tries,
/// since a busy emulator may stop between the two reads.
fn both_clocks() -> (u32, u64) {
    const LOOKS: u32 = 8;
    let look = |_| {
        let before = ticks();
        // SAFETY: the controller is where every x86 machine begins with it; reading changes nothing.
        let left = unsafe { LEFT.read_volatile() };
        (ticks() - before, (left, before))
    };
    (0..LOOKS).map(look).min().unwrap_or_default().1
}

/// Takes the pending interrupts.
pub fn take() -> Taken {
    // SAFETY: `begin` has made a handler for each; they touch one word of ours, and nothing below the stack.
    unsafe { asm!("stgi", "sti", "nop", "nop", "cli", "clgi") };
    taken()
}

/// Sleeps until there is an interrupt.
pub fn wait() -> Taken {
    // SAFETY: as in `take`. An interrupt that is pending already ends the sleep: none is taken before it begins.
    unsafe { asm!("stgi", "sti", "hlt", "cli", "clgi") };
    taken()
}

fn taken() -> Taken {
    // SAFETY: handlers run on this processor only, and interrupts are off.
    let taken = Taken(unsafe { (&raw mut interrupts_taken).replace([0; 4]) });
    if taken.is_tick() {
        // SAFETY: as in `begin`. The old controller's interrupts are ended there, by the guest.
        unsafe { END.write_volatile(0) };
    }
    taken
}
