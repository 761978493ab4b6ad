//! Turns VMX on for this processor, once.

use super::region::Region;
use super::tables::HostTables;
use crate::cpu::{rdmsr, wrmsr};
use alloc::boxed::Box;
use core::arch::asm;
use core::fmt;
use x86::msr;

/// The features of a processor's extended page tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Five levels.
    pub five_levels: bool,
    /// Leaves of 1 GiB.
    pub gib_pages: bool,
    /// Accessed and Dirty bits.
    pub accessed_dirty: bool,
}

/// Why this processor cannot run a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VmxError {
    /// No VMX, or locked off by the firmware.
    Unavailable,
    /// The processor lacks a control that this program needs.
    Unsupported {
        /// The capability register of the control.
        msr: u32,
        /// The control bits that it refuses.
        bits: u32,
    },
    /// The processor refused this instruction.
    Refused(&'static str),
    /// The processor refused the entry into the guest: the VM-instruction error.
    Entry(u64),
}

impl fmt::Display for VmxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable => {
                f.write_str("this processor has no VMX, or its firmware has switched it off")
            }
            Self::Unsupported { msr, bits } => write!(f, "VMX capability {msr:#x} does not allow {bits:#x}"),
            Self::Refused(what) => write!(f, "{what} was refused"),
            Self::Entry(error) => write!(f, "the guest cannot be entered: VM-instruction error {error}"),
        }
    }
}

impl core::error::Error for VmxError {}

/// A processor with VMX on.
pub(super) struct Enabled {
    /// The value that the first word of a VMCS must have.
    pub(super) revision: u32,
    pub(super) features: Features,
    pub(super) tables: HostTables,
}

/// Turns VMX on. Replaces the GDT by a copy that has a TSS, which VMX loads at every exit.
pub(super) fn enable() -> Result<Enabled, VmxError> {
    const CPUID_VMX: u32 = 1 << 5;
    if core::arch::x86_64::__cpuid(1).ecx & CPUID_VMX == 0 {
        return Err(VmxError::Unavailable);
    }
    permit()?;
    control_registers();
    let revision = capability(msr::IA32_VMX_BASIC) as u32 & 0x7fff_ffff;
    // Leaked: the processor keeps it while VMX is on.
    vmxon(Box::leak(Region::new(revision)).address())?;
    let ept = capability(msr::IA32_VMX_EPT_VPID_CAP);
    let has = |bit: u32| ept >> bit & 1 != 0;
    let features = Features { five_levels: has(7), gib_pages: has(17), accessed_dirty: has(21) };
    Ok(Enabled { revision, features, tables: HostTables::load() })
}

/// Reads a register that exists on every processor with VMX.
pub(super) fn capability(register: u32) -> u64 {
    // SAFETY: asked for after CPUID has said that there is VMX.
    unsafe { rdmsr(register) }
}

/// Permits VMX, unless the firmware has already decided: it locks the register. Without firmware the register is
/// unlocked.
fn permit() -> Result<(), VmxError> {
    const LOCKED: u64 = 1 << 0;
    const OUTSIDE_SMX: u64 = 1 << 2;
    let feature = capability(msr::IA32_FEATURE_CONTROL);
    if feature & LOCKED == 0 {
        // SAFETY: the register exists; it permits VMX and changes nothing else.
        unsafe { wrmsr(msr::IA32_FEATURE_CONTROL, feature | LOCKED | OUTSIDE_SMX) };
    } else if feature & OUTSIDE_SMX == 0 {
        return Err(VmxError::Unavailable);
    }
    Ok(())
}

/// Sets CR0 and CR4 as VMX demands, and CR4.OSXSAVE where there is XSAVE, so that this program can execute XSETBV for a
/// guest.
fn control_registers() {
    const VMXE: u64 = 1 << 13;
    const OSXSAVE: u64 = 1 << 18;
    const CPUID_XSAVE: u32 = 1 << 26;
    let xsave = if core::arch::x86_64::__cpuid(1).ecx & CPUID_XSAVE != 0 { OSXSAVE } else { 0 };
    let (cr0, _, cr4) = read_control_registers();
    let cr0 = cr0 | capability(msr::IA32_VMX_CR0_FIXED0);
    let cr4 = cr4 | capability(msr::IA32_VMX_CR4_FIXED0) | VMXE | xsave;
    // SAFETY: paging and protection stay as they are; the bits that are added change nothing that compiled code uses.
    unsafe { asm!("mov cr0, {}", "mov cr4, {}", in(reg) cr0, in(reg) cr4, options(nostack)) }
}

/// CR0, CR3, CR4.
pub(super) fn read_control_registers() -> (u64, u64, u64) {
    let (cr0, cr3, cr4);
    // SAFETY: reading them in ring 0 has no effect.
    unsafe {
        asm!("mov {}, cr0", "mov {}, cr3", "mov {}, cr4", out(reg) cr0, out(reg) cr3, out(reg) cr4,
            options(nomem, nostack, preserves_flags));
    }
    (cr0, cr3, cr4)
}

fn vmxon(region: u64) -> Result<(), VmxError> {
    let refused: u8;
    // SAFETY: the region is a page of our own that lives as long as VMX is on.
    unsafe {
        asm!("vmxon [{}]", "setbe {}", in(reg) &raw const region, out(reg_byte) refused, options(nostack));
    }
    if refused == 0 { Ok(()) } else { Err(VmxError::Refused("VMXON")) }
}
