//! The host's descriptor tables while VMX is on: a copy of the loader's GDT, followed by a TSS.
//!
//! VMX loads the task register at each exit and refuses a null one; a loader makes no TSS. The TSS stays empty: this
//! program never leaves privilege level 0, and keeps interrupts off.

use alloc::boxed::Box;
use core::arch::asm;

/// Entries that a GDT made here can hold: those of the loader and the two of the TSS.
const ENTRIES: usize = 16;

#[repr(C, packed)]
struct Register {
    limit: u16,
    base: u64,
}

#[repr(C, align(16))]
struct Tables {
    gdt: [u64; ENTRIES],
    tss: [u8; 104],
}

/// The addresses of the host's tables, for the host's part of a VMCS.
#[derive(Clone, Copy)]
pub(super) struct HostTables {
    pub(super) gdt: u64,
    pub(super) tss: u64,
    /// The TSS's selector, loaded in TR.
    pub(super) tr: u16,
}

impl HostTables {
    /// Copies the GDT in use, adds a TSS and loads both on this processor, for good.
    pub(super) fn load() -> Self {
        let mut old = Register { limit: 0, base: 0 };
        // SAFETY: stores ten bytes into `old`.
        unsafe { asm!("sgdt [{}]", in(reg) &raw mut old, options(nostack, preserves_flags)) }
        let entries = (usize::from(old.limit) + 1) / 8;
        assert!(entries + 2 <= ENTRIES, "the loader's GDT is small");
        let tables = Box::leak(Box::new(Tables { gdt: [0; ENTRIES], tss: [0; 104] }));
        // SAFETY: the processor uses this very table, so it is mapped, aligned to a word and of that length.
        tables.gdt[..entries]
            .copy_from_slice(unsafe { core::slice::from_raw_parts(old.base as *const u64, entries) });
        let tss = (&raw const tables.tss) as u64;
        (tables.gdt[entries], tables.gdt[entries + 1]) = descriptor(tss);
        let gdt = (&raw const tables.gdt) as u64;
        let new = Register { limit: size_of_val(&tables.gdt) as u16 - 1, base: gdt };
        let tr = (entries * 8) as u16;
        // SAFETY: the new table has the segment registers' descriptors at the same places; the table and the TSS
        // are leaked.
        unsafe { asm!("lgdt [{}]", "ltr {:x}", in(reg) &raw const new, in(reg) tr, options(nostack)) }
        Self { gdt, tss, tr }
    }
}

/// The two words of a descriptor of a TSS that is not busy.
fn descriptor(base: u64) -> (u64, u64) {
    const PRESENT_TSS: u64 = 0x89 << 40;
    const LIMIT: u64 = 103;
    (LIMIT | (base & 0xff_ffff) << 16 | PRESENT_TSS | (base >> 24 & 0xff) << 56, base >> 32)
}
