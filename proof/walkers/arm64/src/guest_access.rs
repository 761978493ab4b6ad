//! The guest: a few instructions at EL1, each of which makes one access and returns.
//!
//! Its stage 1 is off, so its addresses are guest-physical. One trip:
//!
//! ```text
//! EL2   touch: x0 = address, x1 = value, ELR = load | store | fetch ── ERET ─▶  EL1
//!                                                                        ldr x1, [x0]   str x1, [x0]   br x0
//! EL2   guest_exit: keep x0 and x1, go back into touch  ◀── HVC #0, or the abort ──
//! ```
//! The branch leads to code that [`write_code`] has put into the page: it returns the page's physical address in `x0`.
//! An exception that EL1 itself takes ends in `HVC #1`; stage 2 is not involved.

use aarch64_cpu::asm::barrier::{self, dsb, isb};
use aarch64_cpu::registers::{
    ELR_EL2, ESR_EL2, FAR_EL2, HPFAR_EL2, Readable, SCTLR_EL1, SPSR_EL2, VBAR_EL1, Writeable,
};
use core::arch::{asm, global_asm};
use slat::{Access, Gfn, Gpa, Level, PAGE_SIZE, Pfn};
use slat_judge::{CODE_OFFSET, FaultWhy};

global_asm!(
    // EL1: one page, mapped for the guest all the time.
    ".section .guest, \"ax\"",
    ".global guest_vectors, guest_load, guest_store, guest_fetch",
    ".balign 2048",
    "guest_vectors:",
    ".rept 16",
    "   .balign 128",
    "   hvc #1",
    ".endr",
    "   .balign 128",
    "guest_load:",
    "   ldr x1, [x0]",
    "   hvc #0",
    "guest_store:",
    "   str x1, [x0]",
    "   hvc #0",
    "guest_fetch:",
    "   br  x0",
    // EL2: guest_trip(&mut [x0, x1]) calls the guest as if it were a function. What a callee must keep is kept here, since
    // the guest promises nothing.
    ".text",
    ".global guest_trip, guest_exit",
    "guest_trip:",
    "   stp x19, x20, [sp, #-112]!",
    "   stp x21, x22, [sp, #16]",
    "   stp x23, x24, [sp, #32]",
    "   stp x25, x26, [sp, #48]",
    "   stp x27, x28, [sp, #64]",
    "   stp x29, x30, [sp, #80]",
    "   str x0, [sp, #96]",
    "   ldp x0, x1, [x0]",
    "   eret",
    "guest_exit:",
    "   ldr x2, [sp, #96]",
    "   stp x0, x1, [x2]",
    "   ldp x29, x30, [sp, #80]",
    "   ldp x27, x28, [sp, #64]",
    "   ldp x25, x26, [sp, #48]",
    "   ldp x23, x24, [sp, #32]",
    "   ldp x21, x22, [sp, #16]",
    "   ldp x19, x20, [sp], #112",
    "   ret",
);

unsafe extern "C" {
    static guest_vectors: [u32; 512];
    static guest_load: u32;
    static guest_store: u32;
    static guest_fetch: u32;
    fn guest_trip(registers: &mut [u64; 2]);
}

/// The end of a trip.
pub enum Exit {
    /// The access succeeded; the guest's registers.
    Through {
        /// After a fetch: the physical address of the page that ran.
        x0: u64,
        /// After a load: the word.
        x1: u64,
    },
    /// Stage 2 refused it.
    Refused(Abort),
    /// EL1 took an exception of its own: an external abort of the memory behind stage 2, or no instruction.
    Own,
}

/// The processor's report of an access that stage 2 refused.
#[derive(Clone, Copy)]
pub struct Abort {
    /// The reason.
    pub why: FaultWhy,
    /// The level at which the walk ended, if reported.
    pub level: Option<Level>,
    /// The address.
    pub gpa: Gpa,
}

/// Returns the frame of the guest's code page.
pub fn own_page() -> Pfn {
    Pfn((&raw const guest_vectors).addr() as u64 / PAGE_SIZE)
}

/// Prepares EL1: no stage 1, and exception vectors.
pub fn prepare() {
    // The bits that are always one, without the MMU.
    SCTLR_EL1.set(0x30d0_0800);
    VBAR_EL1.set((&raw const guest_vectors).addr() as u64);
    isb(barrier::SY);
}

/// Makes one access of the guest through the loaded tables. A fetch goes to the code of [`write_code`].
pub fn touch(gpa: Gpa, access: Access, value: u64) -> Exit {
    let code = match access {
        Access::Read => &raw const guest_load,
        Access::Write => &raw const guest_store,
        Access::Fetch => &raw const guest_fetch,
    };
    ELR_EL2.set(code.addr() as u64);
    SPSR_EL2.write(
        SPSR_EL2::M::EL1h
            + SPSR_EL2::D::Masked
            + SPSR_EL2::A::Masked
            + SPSR_EL2::I::Masked
            + SPSR_EL2::F::Masked,
    );
    let mut registers = [gpa.0, value];
    // SAFETY: the guest comes back by `guest_exit`, which restores all that a callee keeps. Stage 2 lets it
    // write only to frames that the judge maps for it.
    unsafe { guest_trip(&mut registers) };
    let [x0, x1] = registers;
    match ESR_EL2.read_as_enum(ESR_EL2::EC) {
        Some(ESR_EL2::EC::Value::HVC64) if ESR_EL2.read(ESR_EL2::ISS) == 0 => Exit::Through { x0, x1 },
        Some(ESR_EL2::EC::Value::HVC64) => Exit::Own,
        Some(ESR_EL2::EC::Value::DataAbortLowerEL | ESR_EL2::EC::Value::InstrAbortLowerEL) => {
            Exit::Refused(abort())
        }
        _ => panic!("the guest came back with ESR {:#x} from {:#x}", ESR_EL2.get(), ELR_EL2.get()),
    }
}

/// Returns the abort from ESR, FAR and HPFAR.
fn abort() -> Abort {
    let (why, level) = status(ESR_EL2.read(ESR_EL2::ISS));
    // Stage 1 is off, so FAR is a guest-physical address. HPFAR has its page again, but its contents are guaranteed
    // only after faults of these two kinds.
    let gpa = Gpa(FAR_EL2.get());
    if let FaultWhy::Absent | FaultWhy::AccessFlag = why {
        let gfn = Gfn(HPFAR_EL2.read(HPFAR_EL2::FIPA));
        assert_eq!(gfn, gpa.gfn(), "HPFAR and FAR tell of two pages");
    }
    Abort { why, level, gpa }
}

/// Decodes a fault status code, as in the lowest bits of ESR and in PAR: the reason, and the level, which the manual
/// counts from the root.
pub fn status(code: u64) -> (FaultWhy, Option<Level>) {
    let why = match code >> 2 & 0b1111 {
        0b0000 => FaultWhy::Misconfigured, // an address that is too large
        0b0001 => FaultWhy::Absent,
        0b0010 => FaultWhy::AccessFlag,
        0b0011 => FaultWhy::Permission,
        _ => return (FaultWhy::Unsaid, None),
    };
    (why, Level::new(4 - (code & 0b11) as u8))
}

/// Writes code into the last bytes of a page that returns the page's own physical address: `MOVZ`, two `MOVK`,
/// `HVC #0`. The address is in the instructions, so that the code reads no memory.
pub fn write_code(pfn: Pfn) {
    const MOVZ: u32 = 0xd280_0000;
    const MOVK: u32 = 0xf280_0000;
    const HVC: u32 = 0xd400_0002;
    let piece = |instruction: u32, half: u32| {
        instruction | half << 21 | ((pfn.address() >> (16 * half)) as u32 & 0xffff) << 5
    };
    let code: *mut u32 = core::ptr::with_exposed_provenance_mut((pfn.address() + CODE_OFFSET) as usize);
    for (index, word) in [piece(MOVZ, 0), piece(MOVK, 1), piece(MOVK, 2), HVC].into_iter().enumerate() {
        // SAFETY: inside a frame of the guest's memory, identity mapped, which only the guest uses beside us.
        unsafe { code.add(index).write_volatile(word) };
    }
    dsb(barrier::ISH);
    // SAFETY: makes every instruction cache look again; no memory changes.
    unsafe { asm!("ic ialluis", options(nostack, preserves_flags)) };
    dsb(barrier::ISH);
    isb(barrier::SY);
}
