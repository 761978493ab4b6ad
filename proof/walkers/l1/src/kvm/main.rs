//! A program for Linux that runs a guest on `/dev/kvm`. If that Linux is L1 under slat's thin hypervisor, the guest is
//! L2.
//!
//! ```text
//! L2    visits 64 MiB, page by page and out of order: each page must hold the word of the last round; L2 writes another word, and sums
//!       both up; after each 512 pages it exits
//! here  changes the memory of L2 once: protects it, forks, takes a dirty log, moves pages, swaps out, collapses
//! end   the sum must be the expected one, and so must all of the memory
//! ```
//! The guest has no interrupts. Its own page tables map 1 GiB by pages of 2 MiB. An error of the system ends the
//! program with a line.
#![no_std]
#![no_main]

mod sys;

use core::arch::global_asm;
use sys::{Kvm, fail, say};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Addresses of L2's code, tables and data in its memory, and the size of the data.
const CODE: u64 = 0x1000;
const TABLES: u64 = 0x2000;
const DATA: u64 = 16 * MIB;
const PAGES: u64 = 64 * MIB / PAGE;
const MEMORY: u64 = DATA + PAGES * PAGE;
/// The word of a page is `round * ROUND + page * PLACE`; L2 visits pages in steps of `STEP`.
const ROUND: u64 = 0x9e37_79b9_7f4a_7c15;
const PLACE: u64 = 0xd1b5_4a32_d192_ed03;
const STEP: u64 = 5393;
const ROUNDS: u64 = 3;
/// Number of turns between two lines.
const TOLD: u64 = 8;
/// Ports: L1's turn, the end, a wrong page.
const TURN: u16 = 0x10;
const END: u16 = 0x11;
const WRONG: u16 = 0x12;

// rdi = the data, rsi = pages, r8 = round, r9 = the sum, r10 = ROUND, r11 = PLACE, r12 = the last round.
global_asm!(
    ".global l2_begin, l2_end",
    "l2_begin:",
    "2: xor ecx, ecx",
    "3: imul rbp, rcx, 5393",
    "lea rbx, [rsi - 1]",
    "and rbp, rbx",
    "mov rbx, rbp",
    "shl rbx, 12",
    "add rbx, rdi",
    "imul rbp, r11",
    "lea rdx, [r8 - 1]",
    "test rdx, rdx",
    "jz 4f",
    "imul rdx, r10",
    "add rdx, rbp",
    "4: mov rax, [rbx]",
    "cmp rax, rdx",
    "jne 6f",
    "cmp rax, [rbx + 4088]",
    "jne 6f",
    "add r9, rax",
    "rol r9, 5",
    "mov rdx, r8",
    "imul rdx, r10",
    "add rdx, rbp",
    "mov [rbx], rdx",
    "mov [rbx + 4088], rdx",
    "add r9, rdx",
    "rol r9, 7",
    "inc rcx",
    "test ecx, 511",
    "jne 5f",
    "out 0x10, al",
    "5: cmp rcx, rsi",
    "jne 3b",
    "inc r8",
    "cmp r8, r12",
    "jbe 2b",
    "out 0x11, al",
    "6: out 0x12, al",
    "l2_end:",
);

unsafe extern "C" {
    static l2_begin: u8;
    static l2_end: u8;
}

#[unsafe(no_mangle)]
extern "C" fn run() -> ! {
    let memory = sys::memory(MEMORY + 2 * MIB).next_multiple_of(2 * MIB);
    let code = &raw const l2_begin;
    // SAFETY: both ends of the code above; the memory is ours, and nothing else is there.
    unsafe {
        let bytes = (&raw const l2_end).offset_from_unsigned(code);
        core::ptr::copy_nonoverlapping(code, (memory + CODE) as *mut u8, bytes);
    }
    put(memory + TABLES, TABLES + PAGE | 3);
    put(memory + TABLES + PAGE, TABLES + 2 * PAGE | 3);
    for leaf in 0..512 {
        put(memory + TABLES + 2 * PAGE + 8 * leaf, leaf * 2 * MIB | 0x83);
    }
    let mut kvm = Kvm::new(memory, MEMORY);
    kvm.enter_long_mode(TABLES);
    kvm.set_registers(CODE, [DATA, PAGES, 1, 0, ROUND, PLACE, ROUNDS]);
    let mut turns = 0;
    let sum = loop {
        match kvm.run() {
            TURN => disturb(&mut kvm, memory, turns),
            END => break kvm.sum(),
            WRONG => fail("L2 has found a page that is not as it left it", kvm.page()),
            other => fail("L2 has come out by itself", other.into()),
        }
        turns += 1;
        if turns % TOLD == 0 {
            say("slat: l2-turns ", turns);
        }
    };
    let wanted = expected();
    if sum != wanted {
        fail("L2's sum is wrong", sum);
    }
    for page in 0..PAGES {
        let at = memory + DATA + page * PAGE;
        let word = value(ROUNDS, page);
        if get(at) != word || get(at + PAGE - 8) != word {
            fail("a page of L2's is wrong", page);
        }
    }
    say("slat: l2 sum ", sum);
    say("slat: l2-dirty ", kvm.dirty);
    sys::exit(0)
}

fn value(round: u64, page: u64) -> u64 {
    if round == 0 { 0 } else { round.wrapping_mul(ROUND).wrapping_add(page.wrapping_mul(PLACE)) }
}

/// Returns the expected sum of L2.
fn expected() -> u64 {
    let mut sum = 0_u64;
    for round in 1..=ROUNDS {
        for nth in 0..PAGES {
            let page = nth * STEP % PAGES;
            sum = sum.wrapping_add(value(round - 1, page)).rotate_left(5);
            sum = sum.wrapping_add(value(round, page)).rotate_left(7);
        }
    }
    sum
}

/// Does one operation on 2 MiB of the memory, or on all of it.
fn disturb(kvm: &mut Kvm, memory: u64, turn: u64) {
    let block = memory + DATA + turn.wrapping_mul(11) % 32 * 2 * MIB;
    match turn % 6 {
        0 => {
            sys::protect(block, 2 * MIB, false);
            sys::protect(block, 2 * MIB, true);
        }
        1 => sys::fork_and_wait(),
        2 => kvm.log_dirty(turn % 12 == 2),
        // Removes the pages, and brings the contents back in other frames.
        3 => (0..64).for_each(|page| sys::replace(block + page * 8 * PAGE, PAGE)),
        4 => sys::advise(block, MIB / 4, sys::PAGE_OUT),
        _ => sys::advise(block, 2 * MIB, sys::COLLAPSE),
    }
}

fn get(at: u64) -> u64 {
    // SAFETY: of our own memory.
    unsafe { (at as *const u64).read_volatile() }
}

fn put(at: u64, word: u64) {
    // SAFETY: of our own memory.
    unsafe { (at as *mut u64).write_volatile(word) }
}
