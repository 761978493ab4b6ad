//! Stage 2 of the processor (VTCR, VTTBR, HCR), and its operations: to forget everything, and to translate one address.

use crate::guest_access::status;
use aarch64_cpu::asm::barrier::{self, dsb, isb};
use aarch64_cpu::registers::{
    HCR_EL2, ID_AA64MMFR0_EL1, ID_AA64MMFR1_EL1, ID_AA64MMFR2_EL1, PAR_EL1, Readable, VTCR_EL2, VTTBR_EL2,
    Writeable,
};
use core::arch::asm;
use slat::table::Format;
use slat::{Access, Gpa, Level, MemoryType, PAGE_SHIFT, Pfn};
use slat_judge::FaultWhy;

/// The tag of the guest's translations.
const VMID: u64 = 1;

/// Settings in VTCR: the bits of an input address, the number of levels, and whether the walker sets Accessed and
/// Dirty.
#[derive(Clone, Copy, Debug)]
pub struct Stage2 {
    input_bits: u64,
    levels: u64,
    hardware_ad: bool,
}

impl Stage2 {
    /// Returns the settings for tables of format `F`.
    pub fn of<F: Format>() -> Self {
        Self {
            input_bits: u64::from(F::FRAME_BITS + PAGE_SHIFT),
            levels: F::LEVELS.into(),
            hardware_ad: F::HARDWARE_AD,
        }
    }

    /// Returns what this processor lacks to walk such tables, as the engine edits them.
    pub fn lacks(self) -> Option<&'static str> {
        const BOTH_UPDATES: u64 = 2;
        const IN_PLACE: u64 = 2;
        if u64::from(physical_bits()) < self.input_bits {
            return Some("has too few bits of physical address");
        }
        if self.hardware_ad && ID_AA64MMFR1_EL1.read(ID_AA64MMFR1_EL1::HAFDBS) < BOTH_UPDATES {
            return Some("does not manage AF and the dirty state in hardware (FEAT_HAFDBS)");
        }
        // The engine splits and recovers large pages in place, without a break-before-make.
        if ID_AA64MMFR2_EL1.read(ID_AA64MMFR2_EL1::BBM) < IN_PLACE {
            return Some("wants a break before a page changes its size (FEAT_BBM below level 2)");
        }
        None
    }

    /// Enables stage 2 for EL1, with empty caches.
    pub fn begin(self) {
        let updates = u64::from(self.hardware_ad);
        VTCR_EL2.write(
            VTCR_EL2::RES1.val(1)
                + VTCR_EL2::T0SZ.val(64 - self.input_bits)
                // Three levels begin at what the manual calls level 1, four at its level 0.
                + VTCR_EL2::SL0.val(self.levels - 2)
                + VTCR_EL2::TG0::Granule4KB
                // 48 bits at most fit into tables of 4 KiB pages.
                + VTCR_EL2::PS.val(physical_size().min(0b101))
                // Walks go through the caches, as our stores to the tables do.
                + VTCR_EL2::IRGN0::NormalWBRAWA
                + VTCR_EL2::ORGN0::NormalWBRAWA
                + VTCR_EL2::SH0::Inner
                + VTCR_EL2::HA.val(updates)
                + VTCR_EL2::HD.val(updates),
        );
        // EL1 in AArch64; external aborts go to EL2; memory is write-back although the guest's own MMU is off.
        HCR_EL2.write(
            HCR_EL2::VM::Enable
                + HCR_EL2::DC.val(1)
                + HCR_EL2::RW::EL1IsAarch64
                + HCR_EL2::TEA::EnableTrapSyncExtAbortsToEl2,
        );
        flush();
    }
}

/// Returns the size of physical addresses in the encoding of VTCR.
fn physical_size() -> u64 {
    ID_AA64MMFR0_EL1.read(ID_AA64MMFR0_EL1::PARange)
}

/// Returns the bits of a physical address, and of a guest-physical address that a guest can form.
pub fn physical_bits() -> u32 {
    [32, 36, 40, 42, 44, 48, 52].get(physical_size() as usize).copied().unwrap_or(52)
}

/// Makes later walks begin at `root`, without a flush.
pub fn load(root: Pfn) {
    VTTBR_EL2.set(VMID << 48 | root.address());
    isb(barrier::SY);
}

/// Forgets every translation of the guest, and ends walks under way.
pub fn flush() {
    // ORDER(table-flush): stores to the tables are seen by every walk from here on, before the TLB forgets; and it has
    // forgotten before what follows.
    dsb(barrier::ISH);
    // SAFETY: drops copies of table entries, and changes no memory.
    unsafe { asm!("tlbi vmalls12e1is", options(nostack, preserves_flags)) };
    dsb(barrier::ISH);
    isb(barrier::SY);
}

/// Returns what `AT` reports for memory that stage 2 maps as this type, if the guest's own attributes take nothing
/// away: both stages together as MAIR encodes them, in bits 9..2, and shareability.
pub fn told_of(memory: MemoryType) -> u64 {
    let (attributes, shareability) = match memory {
        MemoryType::WriteBack => (0xff, 0b11),
        MemoryType::WriteCombining => (0x44, 0b10),
        MemoryType::Uncached => (0x0c, 0b10),
        MemoryType::Device => (0x04, 0b10),
    };
    attributes << 2 | shareability
}

/// Result of a translation without an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Translation {
    /// To this frame, of a type as [`told_of`] has it.
    Memory(Pfn, u64),
    /// Not at all.
    Fault(FaultWhy, Option<Level>),
}

/// Translates as for a load or a store of the guest, by `AT S12E1R` or `AT S12E1W`. This walks, and sets Accessed and
/// Dirty as an access does. There is no such instruction for fetches.
pub fn translate(gpa: Gpa, access: Access) -> Option<Translation> {
    dsb(barrier::ISH);
    match access {
        // SAFETY: a walk writes nothing but Accessed and Dirty bits, which are there to be written by it.
        Access::Read => unsafe { asm!("at s12e1r, {}", in(reg) gpa.0, options(nostack, preserves_flags)) },
        // SAFETY: as above.
        Access::Write => unsafe { asm!("at s12e1w, {}", in(reg) gpa.0, options(nostack, preserves_flags)) },
        Access::Fetch => return None,
    }
    isb(barrier::SY);
    Some(if PAR_EL1.is_set(PAR_EL1::F) {
        let (why, level) = status(PAR_EL1.get() >> 1);
        Translation::Fault(why, level)
    } else {
        let told = PAR_EL1.get();
        Translation::Memory(Pfn(PAR_EL1.read(PAR_EL1::PA)), told >> 56 << 2 | told >> 7 & 0b11)
    })
}
