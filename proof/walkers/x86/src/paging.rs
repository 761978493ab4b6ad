//! The host's own paging. AMD-V walks nested tables in the host's paging mode, so a guest behind five levels needs a
//! host with five, and one behind PAE tables a host outside long mode.
//!
//! Five levels add one level above the existing four, until it is undone. PAE is entered for each run of the guest and
//! left again, because code for long mode cannot run there.

use crate::processor::Registers;
use crate::vmcb::Vmcb;
use alloc::boxed::Box;
use core::arch::asm;

core::arch::global_asm!(include_str!("paging.s"));

unsafe extern "C" {
    /// Exchanges CR3 and CR4, with paging off in between.
    fn paging_set(cr3: u64, cr4: u64);
    /// As `svm_run`, from PAE paging with the four entries at `cr3`.
    fn svm_run_pae(vmcb: *mut Vmcb, registers: *mut Registers, cr3: u64);
}

const PRESENT_WRITABLE: u64 = 0b11;
const LARGE: u64 = 1 << 7;
/// CR4.LA57: long mode has five levels.
const LA57: u64 = 1 << 12;

#[derive(Debug)]
#[repr(C, align(4096))]
struct Table([u64; 512]);

/// Returns whether this processor supports five levels.
pub fn has_five_levels() -> bool {
    core::arch::x86_64::__cpuid_count(7, 0).ecx >> 16 & 1 != 0
}

/// Sets the number of levels of this processor's own paging, 4 or 5, with the same mappings.
///
/// # Panics
/// If five levels are not supported.
pub fn set_levels(levels: u8) {
    let (cr3, cr4): (u64, u64);
    // SAFETY: reading them has no effect.
    unsafe { asm!("mov {}, cr3", "mov {}, cr4", out(reg) cr3, out(reg) cr4, options(nomem, nostack)) }
    if (levels == 5) == (cr4 & LA57 != 0) {
        return;
    }
    assert!(levels == 4 || has_five_levels(), "this processor has no paging of {levels} levels");
    let cr3 = if levels == 5 {
        let mut top = Box::new(Table([0; 512]));
        top.0[0] = cr3 | PRESENT_WRITABLE;
        // Leaked: the processor uses it until `levels` is 4 again.
        Box::leak(top).0.as_ptr() as u64
    } else {
        // SAFETY: the table made above, whose only entry links the tables from before.
        unsafe { *(cr3 as *const u64) & !0xfff }
    };
    // SAFETY: the tables map what was mapped; interrupts are off; program and stack are below 4 GiB, one to one.
    unsafe { paging_set(cr3, cr4 ^ LA57) };
}

/// PAE tables that map the first GiB one to one, for a 32-bit host.
#[derive(Debug)]
pub(crate) struct Pae {
    root: Box<Table>,
    _gigabyte: Box<Table>,
}

impl Pae {
    pub(crate) fn new() -> Self {
        let mut gigabyte = Box::new(Table([0; 512]));
        for (address, entry) in (0..).step_by(2 << 20).zip(&mut gigabyte.0) {
            *entry = address | LARGE | PRESENT_WRITABLE;
        }
        let mut root = Box::new(Table([0; 512]));
        // An entry of the root has no W.
        root.0[0] = gigabyte.0.as_ptr() as u64 | 1;
        Self { root, _gigabyte: gigabyte }
    }

    /// Does one VMRUN from PAE paging. The guest gets only the lower halves of its general registers up to rbp.
    ///
    /// # Safety
    /// As for any VMRUN, the block must be complete, and its guest must reach only its own memory.
    pub(crate) unsafe fn run(&self, vmcb: &mut Vmcb, registers: &mut Registers) {
        // SAFETY: the caller promises a complete block whose guest reaches only its own memory; this program lies in
        // the first GiB, which these tables map.
        unsafe { svm_run_pae(vmcb, registers, self.root.0.as_ptr() as u64) };
    }
}
