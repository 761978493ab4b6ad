//! From the emulator's jump to Rust: a stack, cleared memory, an identity map for EL2, a heap.
//!
//! QEMU's `virt` machine enters at EL2 with the MMU off, on one processor. Without an MMU all memory would be Device
//! memory, on which exclusive loads and stores, and so atomics, have no guarantees. So EL2 gets a map of its own: one
//! table, two leaves of 1 GiB, one to one. Then table memory is at its frame number, as the host's default,
//! `Heap`, requires.

use crate::console::println;
use aarch64_cpu::asm::barrier::{self, dsb, isb};
use aarch64_cpu::registers::{
    CurrentEL, MAIR_EL2, ReadWriteable, Readable, SCTLR_EL2, TCR_EL2, TTBR0_EL2, Writeable,
};
use core::arch::global_asm;
use linked_list_allocator::LockedHeap;

global_asm!(
    ".section .text.boot, \"ax\"",
    ".global _start",
    "_start:",
    "   adrp x0, __stack_top",
    "   mov  sp, x0",
    "   adrp x0, __bss_start",
    "   add  x0, x0, :lo12:__bss_start",
    "   adrp x1, __bss_end",
    "   add  x1, x1, :lo12:__bss_end",
    "1: cmp  x0, x1",
    "   b.hs 2f",
    "   stp  xzr, xzr, [x0], #16",
    "   b    1b",
    // The program, which this file does not know.
    "2: bl   main",
    "   b    .",
);

#[global_allocator]
static HEAP: LockedHeap = LockedHeap::empty();

unsafe extern "C" {
    static mut __heap_start: u8;
    static mut __heap_end: u8;
}

/// A level-1 table of EL2's own stage 1. Only its first two entries are used: 32 bits of address need four.
#[repr(C, align(4096))]
struct Identity([u64; 512]);

/// A block of 1 GiB, accessed, inner shareable; without the index into `MAIR_EL2`.
const BLOCK: u64 = 0b01 | 1 << 10 | 0b11 << 8;
const NEVER_EXECUTED: u64 = 1 << 54;
const NORMAL: u64 = 0;
const DEVICE: u64 = 1;

static IDENTITY: Identity = {
    let mut table = [0; 512];
    table[0] = BLOCK | DEVICE << 2 | NEVER_EXECUTED;
    table[1] = 1 << 30 | BLOCK | NORMAL << 2;
    Identity(table)
};

/// Prepares the processor, once, before any allocation. Returns false if this is not EL2.
pub fn begin() -> bool {
    if CurrentEL.read_as_enum(CurrentEL::EL) != Some(CurrentEL::EL::Value::EL2) {
        println!("JUDGE FAILED: this program begins at EL2: -M virt,virtualization=on");
        return false;
    }
    map_identity();
    // SAFETY: the linker script keeps these bytes for the heap and for nothing else; they are initialised once.
    unsafe {
        let (start, end) = (&raw mut __heap_start, &raw mut __heap_end);
        HEAP.lock().init(start, end.addr() - start.addr());
    }
    true
}

fn map_identity() {
    MAIR_EL2.write(
        MAIR_EL2::Attr0_Normal_Outer::WriteBack_NonTransient_ReadWriteAlloc
            + MAIR_EL2::Attr0_Normal_Inner::WriteBack_NonTransient_ReadWriteAlloc
            + MAIR_EL2::Attr1_Device::nonGathering_nonReordering_noEarlyWriteAck,
    );
    TCR_EL2.write(
        TCR_EL2::T0SZ.val(32)
            + TCR_EL2::TG0::KiB_4
            + TCR_EL2::SH0::Inner
            + TCR_EL2::ORGN0::WriteBack_ReadAlloc_WriteAlloc_Cacheable
            + TCR_EL2::IRGN0::WriteBack_ReadAlloc_WriteAlloc_Cacheable
            + TCR_EL2::PS::Bits_40,
    );
    TTBR0_EL2.set_baddr((&raw const IDENTITY).addr() as u64);
    // The table and the registers, before the walker that reads them.
    dsb(barrier::SY);
    isb(barrier::SY);
    SCTLR_EL2.modify(SCTLR_EL2::M::Enable + SCTLR_EL2::C::Cacheable + SCTLR_EL2::I::Cacheable);
    isb(barrier::SY);
}
