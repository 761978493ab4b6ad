//! A guest of AxVisor with two vCPUs. vCPU 0 asks for a page (a channel between VMs), and vCPU 1 reads it; vCPU 0 gives
//! the page back, and vCPU 1 reads it again. vCPU 1 does not exit in between, so no entry flushes its TLB: only a
//! broadcast does. If the second read succeeds, the guest has read memory that the hypervisor had taken back.

#![no_std]
#![no_main]

use core::arch::{asm, global_asm};
use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

// The MMU is off, so only the second stage translates.
global_asm!(
    r#"
    .section .text.entry, "ax"
    .global _start
_start:
    adrp x1, stacks + 0x4000
    mov sp, x1
    b first
    .global _second
_second:
    adrp x1, stacks + 0x8000
    mov sp, x1
    b second

    .section .bss.stacks, "aw", %nobits
    .balign 4096
stacks:
    .space 0x8000
    "#
);

unsafe extern "C" {
    fn _second();
}

/// AxVisor's hypercalls.
const PUBLISH: u64 = 3;
const UNPUBLISH: u64 = 5;
/// PSCI's calls.
const CPU_ON: u64 = 0xc400_0003;
const SYSTEM_OFF: u64 = 0x8400_0008;

/// The address of the page; vCPU 1's first read, and its second read.
static PAGE: AtomicU64 = AtomicU64::new(0);
static FIRST: AtomicU64 = AtomicU64::new(0);
static AGAIN: AtomicU64 = AtomicU64::new(0);
/// Whether the guest has given the page back.
static TAKEN: AtomicU64 = AtomicU64::new(0);

struct Serial;

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: the data register of QEMU's PL011.
            unsafe { (0x900_0000 as *mut u32).write_volatile(u32::from(byte)) };
        }
        Ok(())
    }
}

macro_rules! say {
    ($($text:tt)*) => {{
        let _ = writeln!(Serial, $($text)*);
    }};
}

fn hypercall(code: u64, key: u64, base: &AtomicU64, size: &AtomicU64) -> u64 {
    let answer;
    // SAFETY: AxVisor writes to `base` and `size`.
    unsafe {
        asm!("hvc #0", inlateout("x0") code => answer, in("x1") key, in("x2") base.as_ptr(), in("x3") size.as_ptr());
    }
    answer
}

/// Asks AxVisor for a page, whose second word is this key.
fn publish(key: u64) -> u64 {
    let (base, size) = (AtomicU64::new(0), AtomicU64::new(4096));
    let answer = hypercall(PUBLISH, key, &base, &size);
    say!("guest: page {key} at {:#x}, answer {answer}", base.load(SeqCst));
    base.load(SeqCst)
}

fn firmware(call: u64, arguments: [u64; 3]) {
    let [one, two, three] = arguments;
    // SAFETY: PSCI keeps all registers but these.
    unsafe {
        asm!("smc #0", inlateout("x0") call => _, inlateout("x1") one => _, inlateout("x2") two => _, inlateout("x3") three => _);
    }
}

/// The page's key, by a load that a hypervisor could emulate.
fn key(page: u64) -> u64 {
    let key;
    // SAFETY: the page is there, or the access is not made.
    unsafe { asm!("ldr {}, [{}, #8]", out(reg) key, in(reg) page) };
    key
}

fn wait_for(what: &AtomicU64) -> u64 {
    loop {
        match what.load(SeqCst) {
            0 => core::hint::spin_loop(),
            value => return value,
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn first() -> ! {
    PAGE.store(publish(1), SeqCst);
    firmware(CPU_ON, [1, _second as *const () as u64, 0]);
    say!("guest: vCPU 1 has read key {}", wait_for(&FIRST));
    let unused = AtomicU64::new(0);
    let answer = hypercall(UNPUBLISH, 1, &unused, &unused);
    say!("guest: page 1 given back, answer {answer}");
    publish(2);
    TAKEN.store(1, SeqCst);
    say!("guest: STALE: vCPU 1 has read key {} in the page that was given back", wait_for(&AGAIN));
    firmware(SYSTEM_OFF, [0; 3]);
    loop {}
}

#[unsafe(no_mangle)]
extern "C" fn second() -> ! {
    let page = PAGE.load(SeqCst);
    FIRST.store(key(page), SeqCst);
    wait_for(&TAKEN);
    AGAIN.store(key(page), SeqCst);
    loop {}
}

#[panic_handler]
fn panicked(_: &core::panic::PanicInfo) -> ! {
    say!("guest: panicked");
    loop {}
}
