//! Guest state outside the control block: floating point and vectors, and the registers of RDTSCP and XSETBV. A guest
//! with a processor of its own leaves them there; guests that share one exchange them.

use crate::cpu;
use alloc::boxed::Box;
use core::arch::asm;

/// The MSR of RDTSCP's number; Linux keeps the processor's number there.
const TSC_AUX: u32 = 0xc000_0103;
/// CR4: FXSAVE, its exceptions, XSAVE.
const CR4_EXTENDED: u64 = 1 << 9 | 1 << 10 | 1 << 18;
/// State components in use after reset: x87.
const X87: u64 = 1;
/// Position of MXCSR in the area, and its value after reset.
const MXCSR: (usize, u32) = (24 / 4, 0x1f80);

/// The state of one guest while another has the processor.
#[derive(Debug)]
pub struct Extended {
    area: Box<Area>,
    /// XCR0.
    enabled: u64,
    tsc_aux: u64,
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Area([u32; 1024]);

/// Enables the exchange, once for each processor.
pub fn enable() {
    // SAFETY: every processor with SVM or VMX that QEMU and Bochs make here has XSAVE; nothing of ours uses what it is about.
    unsafe {
        asm!("clts", "mov {0}, cr4", "or {0}, {1}", "mov cr4, {0}", out(reg) _, in(reg) CR4_EXTENDED, options(nostack));
    }
}

impl Extended {
    /// Makes the state after reset.
    pub fn new() -> Self {
        let mut area = Box::new(Area([0; 1024]));
        area.0[MXCSR.0] = MXCSR.1;
        Self { area, enabled: X87, tsc_aux: 0 }
    }

    /// Saves the processor's state.
    pub fn save(&mut self) {
        let (low, high): (u32, u32);
        // SAFETY: `enable` has run here; the area is large enough for all that these emulators have, 2,696 bytes.
        unsafe {
            asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack));
            asm!("xsave64 [{}]", in(reg) &raw mut *self.area, in("eax") low, in("edx") high, options(nostack));
            self.tsc_aux = cpu::rdmsr(TSC_AUX);
        }
        self.enabled = u64::from(high) << 32 | u64::from(low);
    }

    /// Loads the state into the processor.
    pub fn load(&self) {
        let (low, high) = (self.enabled as u32, (self.enabled >> 32) as u32);
        // SAFETY: as in `save`, which has written the area, or `new` has; the guest has set the register to this.
        unsafe {
            asm!("xsetbv", in("ecx") 0, in("eax") low, in("edx") high, options(nomem, nostack));
            asm!("xrstor64 [{}]", in(reg) &raw const *self.area, in("eax") low, in("edx") high, options(nostack));
            cpu::wrmsr(TSC_AUX, self.tsc_aux);
        }
    }
}

impl Default for Extended {
    fn default() -> Self {
        Self::new()
    }
}
