//! A guest's accesses without a guest: HLV, HSV and HLVX use both stages of translation.
//!
//! The guest's own stage is off, so the address is guest-physical. The trap vector is the end of the instruction
//! itself. A trap changes only CSRs that the next one sets again, so the code need not return from it.

use core::arch::asm;

/// The trap of a refused access.
#[derive(Clone, Copy, Debug)]
pub struct Trap {
    /// `mcause`.
    pub cause: u64,
    /// `mtval2`: the guest-physical address, shifted right by two.
    pub shifted_gpa: u64,
}

/// Guest-page faults: of a fetch, a load, a store.
pub const GUEST_PAGE_FAULTS: [u64; 3] = [20, 21, 23];

/// ADUE, if supported: hardware sets A and D.
const ADUE: u64 = 1 << 61;

/// Enables or disables the hardware's updates of A and D, if supported.
pub fn set_accessed_dirty(on: bool) {
    // SAFETY: menvcfg and henvcfg of this hart, which nothing else uses.
    unsafe {
        if on {
            asm!("csrs 0x30a, {0}", "csrs 0x60a, {0}", in(reg) ADUE);
        } else {
            asm!("csrc 0x60a, {0}", "csrc 0x30a, {0}", in(reg) ADUE);
        }
    }
}

/// PBMTE: leaves have memory types.
const PBMTE: u64 = 1 << 62;

/// Makes all memory accessible, disables the guest's own stage, makes accesses those of its supervisor, and enables
/// memory types in leaves.
pub fn prepare() {
    // SAFETY: registers of this hart, which nothing else uses: PMP 0 over everything; vsatp; hstatus.SPVP; menvcfg and henvcfg.
    unsafe {
        asm!("csrw pmpcfg0, {}", in(reg) 0x1f);
        asm!("csrw pmpaddr0, {}", in(reg) u64::MAX);
        asm!("csrw 0x280, zero");
        asm!("csrs 0x600, {}", in(reg) 1_u64 << 8);
        asm!("csrs 0x30a, {0}", "csrs 0x60a, {0}", in(reg) PBMTE);
    }
}

/// Loads `hgatp`, and returns its value.
pub fn load_hgatp(value: u64) -> u64 {
    let now;
    // SAFETY: tables matter to guests' accesses only.
    unsafe { asm!("csrw 0x680, {}", "csrr {}, 0x680", in(reg) value, out(reg) now) };
    now
}

/// HFENCE.GVMA, of everything.
pub fn fence() {
    // SAFETY: forgets translations, no more.
    unsafe { asm!(".insn r 0x73, 0, 0x31, x0, x0, x0") };
}

/// Runs one instruction; its trap returns behind it.
macro_rules! guarded {
    ($instruction:literal, $address:expr, $value:expr) => {{
        let (mut value, mut cause, mut shifted_gpa): (u64, u64, u64) = ($value, 0, 0);
        // SAFETY: reads or writes what guest frames map: the judge's pattern. The old trap vector is put back.
        unsafe {
            asm!(
                ".option push",
                ".option norvc",
                "la {vector}, 1f",
                "csrrw {vector}, mtvec, {vector}",
                $instruction,
                "j 2f",
                ".balign 4",
                "1: csrr {cause}, mcause",
                "csrr {gpa}, 0x34b",
                ".balign 4",
                "2: csrw mtvec, {vector}",
                ".option pop",
                vector = out(reg) _,
                address = in(reg) $address,
                value = inout(reg) value,
                cause = inout(reg) cause,
                gpa = inout(reg) shifted_gpa,
            );
        }
        if cause == 0 { Ok(value) } else { Err(Trap { cause, shifted_gpa }) }
    }};
}

/// HLV.D.
pub fn load(gpa: u64) -> Result<u64, Trap> {
    guarded!(".insn r 0x73, 4, 0x36, {value}, {address}, x0", gpa, 0)
}

/// HSV.D.
pub fn store(gpa: u64, value: u64) -> Result<u64, Trap> {
    guarded!(".insn r 0x73, 4, 0x37, x0, {address}, {value}", gpa, value)
}

/// HLVX.WU, which needs execute permission. Twice, for 8 bytes.
pub fn fetch(gpa: u64) -> Result<u64, Trap> {
    let half = |gpa: u64| guarded!(".insn r 0x73, 4, 0x34, {value}, {address}, x3", gpa, 0);
    Ok(half(gpa)? | half(gpa + 4)? << 32)
}
