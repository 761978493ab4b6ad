//! A guest's accesses, without a guest: HLV, HSV and HLVX go through both stages of translation as it would.
//!
//! The guest's own stage is off, so the address is guest-physical. A trap is taken to the end of the very instruction:
//! it changes nothing but CSRs that the next one sets again, so there is no need to return from it.

use core::arch::asm;

/// Why an access did not go through.
#[derive(Clone, Copy, Debug)]
pub struct Trap {
    /// `mcause`.
    pub cause: u64,
    /// `mtval2`: the guest-physical address, shifted right by two.
    pub shifted_gpa: u64,
}

/// Guest-page faults: of a fetch, a load, a store.
pub const GUEST_PAGE_FAULTS: [u64; 3] = [20, 21, 23];

/// ADUE, where there is such a bit: hardware sets A and D.
const ADUE: u64 = 1 << 61;

/// Has hardware set A and D, or not, as far as it knows the question.
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

/// PBMTE: leaves say memory types.
const PBMTE: u64 = 1 << 62;

/// Makes all memory accessible, switches the guest's own stage off, and has accesses made as by its supervisor, and leaves say memory
/// types.
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

/// Loads `hgatp`, and says what it is then.
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

/// One instruction whose trap ends behind it.
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

/// HLVX.WU: loads where execution is allowed. Twice, for 8 bytes.
pub fn fetch(gpa: u64) -> Result<u64, Trap> {
    let half = |gpa: u64| guarded!(".insn r 0x73, 4, 0x34, {value}, {address}, x3", gpa, 0);
    Ok(half(gpa)? | half(gpa + 4)? << 32)
}
