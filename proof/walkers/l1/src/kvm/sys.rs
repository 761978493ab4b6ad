//! The system calls of Linux and the ioctls of KVM that the program uses.

use core::arch::{asm, global_asm};
use core::panic::PanicInfo;

// The stack is aligned at a program's start; after a call it must be off by eight bytes.
global_asm!(".global _start", "_start:", "call run", "ud2");

const WRITE: u64 = 1;
const OPEN: u64 = 2;
const MMAP: u64 = 9;
const MPROTECT: u64 = 10;
const IOCTL: u64 = 16;
const MREMAP: u64 = 25;
const MADVISE: u64 = 28;
const FORK: u64 = 57;
/// Exit of all threads, because newer kernels have one of their own in a process with a VM.
const EXIT: u64 = 231;
const WAIT: u64 = 61;
const READ_WRITE: u64 = 3;
/// Populated, so in large pages: otherwise a page that L2 loads first would be the zero page, and copied later.
const PRIVATE_ANONYMOUS: u64 = 0x8022;
const SHARED: u64 = 1;
const MAY_MOVE_THERE: u64 = 3;
/// Advice to page out, or to make a large page. Neither must succeed.
pub const PAGE_OUT: u64 = 21;
pub const COLLAPSE: u64 = 25;

const CREATE_VM: u64 = 0xae01;
const RUN_BYTES: u64 = 0xae04;
const CREATE_VCPU: u64 = 0xae41;
const SET_MEMORY: u64 = 0x4020_ae46;
const GET_DIRTY_LOG: u64 = 0x4010_ae42;
const RUN: u64 = 0xae80;
const GET_REGS: u64 = 0x8090_ae81;
const SET_REGS: u64 = 0x4090_ae82;
const GET_SREGS: u64 = 0x8138_ae83;
const SET_SREGS: u64 = 0x4138_ae84;
const EXIT_IO: u32 = 2;

fn call(number: u64, words: [u64; 5]) -> u64 {
    let result;
    // SAFETY: each caller, all of which are in this file, passes memory that the call may read or write.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") words[0], in("rsi") words[1], in("rdx") words[2],
            in("r10") words[3], in("r8") words[4], in("r9") 0, out("rcx") _, out("r11") _, options(nostack));
    }
    result
}

fn must(what: &str, number: u64, words: [u64; 5]) -> u64 {
    let result = call(number, words);
    if result > u64::MAX - 4096 {
        fail(what, result.wrapping_neg());
    }
    result
}

/// Prints a line with a text and a hexadecimal number.
pub fn say(text: &str, number: u64) {
    let mut line = [b'0'; 17];
    for (digit, place) in line[..16].iter_mut().zip((0..16).rev()) {
        *digit = b"0123456789abcdef"[(number >> (4 * place) & 15) as usize];
    }
    line[16] = b'\n';
    call(WRITE, [1, text.as_ptr() as u64, text.len() as u64, 0, 0]);
    call(WRITE, [1, line.as_ptr() as u64, 17, 0, 0]);
}

/// Ends the program with a failure.
pub fn fail(why: &str, number: u64) -> ! {
    call(WRITE, [1, why.as_ptr() as u64, why.len() as u64, 0, 0]);
    say(": ", number);
    exit(1)
}

pub fn exit(status: u64) -> ! {
    call(EXIT, [status, 0, 0, 0, 0]);
    loop {
        core::hint::spin_loop();
    }
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    fail("panicked", 0)
}

/// Returns zeroed memory.
pub fn memory(bytes: u64) -> u64 {
    must("mmap", MMAP, [0, bytes, READ_WRITE, PRIVATE_ANONYMOUS, u64::MAX])
}

pub fn protect(at: u64, bytes: u64, writable: bool) {
    must("mprotect", MPROTECT, [at, bytes, if writable { 3 } else { 1 }, 0, 0]);
}

pub fn advise(at: u64, bytes: u64, advice: u64) {
    call(MADVISE, [at, bytes, advice, 0, 0]);
}

/// Forks a child, which shares all memory, and waits for its end: each page is copied at its next write.
pub fn fork_and_wait() {
    let child = must("fork", FORK, [0; 5]);
    if child == 0 {
        exit(0);
    }
    must("wait", WAIT, [child, 0, 0, 0, 0]);
}

/// Replaces the frames of a range, with the same contents.
pub fn replace(at: u64, bytes: u64) {
    let fresh = memory(bytes);
    // SAFETY: both are ours, and L2 is out.
    unsafe { core::ptr::copy_nonoverlapping(at as *const u8, fresh as *mut u8, bytes as usize) };
    must("mremap", MREMAP, [fresh, bytes, bytes, MAY_MOVE_THERE, at]);
}

/// A VM of KVM's with one vCPU.
pub struct Kvm {
    vm: u64,
    vcpu: u64,
    run: u64,
    slot: [u64; 4],
    /// Number of pages that the log has reported.
    pub dirty: u64,
    logs: bool,
}

/// Words of general registers, as KVM orders them.
const SUM: usize = 9;
const BYTES_BEFORE_CR0: usize = 224;

impl Kvm {
    /// Makes a VM whose memory, from address 0 on, is ours from `memory` on.
    pub fn new(memory: u64, bytes: u64) -> Self {
        let kvm = must("/dev/kvm", OPEN, [c"/dev/kvm".as_ptr() as u64, 2, 0, 0, 0]);
        let vm = must("KVM_CREATE_VM", IOCTL, [kvm, CREATE_VM, 0, 0, 0]);
        let vcpu = must("KVM_CREATE_VCPU", IOCTL, [vm, CREATE_VCPU, 0, 0, 0]);
        let size = must("KVM_GET_VCPU_MMAP_SIZE", IOCTL, [kvm, RUN_BYTES, 0, 0, 0]);
        let run = must("mmap of the vCPU", MMAP, [0, size, READ_WRITE, SHARED, vcpu]);
        let new = Self { vm, vcpu, run, slot: [0, 0, bytes, memory], dirty: 0, logs: false };
        new.set_memory();
        new
    }

    fn set_memory(&self) {
        // The slot's number, flags (bit 0: it logs), guest address, bytes, and our address.
        let slot = [u64::from(self.logs) << 32, 0, self.slot[2], self.slot[3]];
        must("KVM_SET_USER_MEMORY_REGION", IOCTL, [self.vm, SET_MEMORY, slot.as_ptr() as u64, 0, 0]);
    }

    /// Begins or ends the log; reads it before its end.
    pub fn log_dirty(&mut self, on: bool) {
        if self.logs {
            let bits = [0_u64; 80 << 20 >> 12 >> 6];
            let wanted = [0, bits.as_ptr() as u64];
            must("KVM_GET_DIRTY_LOG", IOCTL, [self.vm, GET_DIRTY_LOG, wanted.as_ptr() as u64, 0, 0]);
            let bits = core::hint::black_box(&bits);
            self.dirty += bits.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        }
        if self.logs != on {
            self.logs = on;
            self.set_memory();
        }
    }

    /// Sets flat segments, and paging with these tables.
    pub fn enter_long_mode(&mut self, tables: u64) {
        let mut words = [0_u64; 39];
        must("KVM_GET_SREGS", IOCTL, [self.vcpu, GET_SREGS, words.as_mut_ptr() as u64, 0, 0]);
        // A segment: base; limit, selector, type, present; privilege, size, kind (code or data), 64 bits, granularity.
        let segment = |selector: u64, kind: u64, long: u64| {
            [
                0,
                0xffff_ffff | selector << 32 | kind << 48 | 1 << 56,
                (1 - long) << 8 | 1 << 16 | long << 24 | 1 << 32,
            ]
        };
        words[..3].copy_from_slice(&segment(8, 11, 1));
        for nth in 1..6 {
            words[3 * nth..3 * nth + 3].copy_from_slice(&segment(16, 3, 0));
        }
        let first = BYTES_BEFORE_CR0 / 8;
        // CR0: paging, write protection, protected mode; CR3; CR4: PAE; EFER: long mode, enabled and active.
        (words[first], words[first + 2], words[first + 3], words[first + 5]) =
            (0x8001_0011, tables, 0x20, 0x500);
        must("KVM_SET_SREGS", IOCTL, [self.vcpu, SET_SREGS, words.as_ptr() as u64, 0, 0]);
    }

    fn registers(&self) -> [u64; 18] {
        let mut words = [0; 18];
        must("KVM_GET_REGS", IOCTL, [self.vcpu, GET_REGS, words.as_mut_ptr() as u64, 0, 0]);
        core::hint::black_box(words)
    }

    /// Sets the next instruction, and rdi, rsi, r8 to r12.
    pub fn set_registers(&mut self, rip: u64, [rdi, rsi, r8, r9, r10, r11, r12]: [u64; 7]) {
        let words = [0, 0, 0, 0, rsi, rdi, 0, 0, r8, r9, r10, r11, r12, 0, 0, 0, rip, 2];
        must("KVM_SET_REGS", IOCTL, [self.vcpu, SET_REGS, words.as_ptr() as u64, 0, 0]);
    }

    /// Runs L2 until it writes to a port. Returns the port.
    pub fn run(&mut self) -> u16 {
        must("KVM_RUN", IOCTL, [self.vcpu, RUN, 0, 0, 0]);
        // SAFETY: KVM's page of the vCPU: the reason at 8, for a port its number at 34.
        let (reason, port) = unsafe {
            (((self.run + 8) as *const u32).read_volatile(), ((self.run + 34) as *const u16).read_volatile())
        };
        if reason != EXIT_IO {
            say("at ", self.registers()[16]);
            fail("L2 has come out for another reason", reason.into());
        }
        port
    }

    /// Returns its sum.
    pub fn sum(&self) -> u64 {
        self.registers()[SUM]
    }

    /// Returns the address of its current page.
    pub fn page(&self) -> u64 {
        self.registers()[1]
    }
}
