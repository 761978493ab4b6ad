//! A VMCS: one virtual processor's state, and the causes of its exits.
//!
//! One VMCS is current on a processor, and VMREAD and VMWRITE use it. So a processor here has one [`Vmcs`], which
//! becomes current when it is made; no other processor uses it.

use super::enable::{Enabled, capability};
use super::region::Region;
use super::switch::switch;
use super::{EptPointer, VmxError};
use crate::processor::{LongMode, Registers};
use alloc::boxed::Box;
use core::arch::asm;
use core::marker::PhantomData;
use x86::msr;
use x86::vmx::vmcs::{control, guest, ro};

/// An external interrupt causes an exit (pin-based).
const EXTERNAL_INTERRUPT: u64 = 1 << 0;
/// This word describes an event (interruption information).
const EVENT_VALID: u64 = 1 << 31;
/// It has an error code.
const EVENT_ERROR_CODE: u64 = 1 << 11;
/// The bits of IDT-vectoring information that are also in entry-interruption information.
const EVENT_BITS: u64 = EVENT_VALID | EVENT_ERROR_CODE | 0x7ff;

/// The current VMCS of this processor.
pub(super) struct Vmcs {
    /// The hardware keeps its state there.
    region: Box<Region>,
    /// The bitmap of MSRs: a set bit makes an access to that MSR exit. No bit is set.
    msrs: Box<Region>,
    launched: bool,
    /// Ties the value to one processor.
    _here: PhantomData<*mut ()>,
}

impl Vmcs {
    /// A guest that begins at `start`; [`point`](Self::point) gives it its tables.
    pub(super) fn new(vmx: &Enabled, start: &LongMode) -> Result<Self, VmxError> {
        let (region, msrs) = (Region::new(vmx.revision), Region::new(0));
        let mut vmcs = Self { region, msrs, launched: false, _here: PhantomData };
        make_current(vmcs.region.address())?;
        vmcs.controls()?;
        vmcs.host_state(&vmx.tables);
        vmcs.guest_state(start);
        Ok(vmcs)
    }

    /// Reads a field by its number, as listed in `x86::vmx::vmcs`; one that does not exist reads as 0.
    #[expect(clippy::unused_self, reason = "a VMCS is current while there is a `Vmcs`")]
    pub(super) fn read(&self, field: u32) -> u64 {
        let mut value = 0_u64;
        // SAFETY: a VMCS is current as long as `self` lives.
        unsafe { asm!("vmread {}, {}", inout(reg) value, in(reg) u64::from(field), options(nostack)) }
        value
    }

    /// Writes a field.
    ///
    /// # Panics
    /// If there is no such field, or it is read-only: a mistake in this module.
    pub(super) fn write(&mut self, field: u32, value: u64) {
        let refused: u8;
        // SAFETY: a VMCS is current as long as `self` lives; only this module writes its fields.
        unsafe {
            asm!("vmwrite {}, {}", "setbe {}", in(reg) u64::from(field), in(reg) value, out(reg_byte) refused,
                options(nostack));
        }
        assert!(refused == 0, "VMWRITE of {value:#x} to {field:#x}: error {}", self.error());
    }

    /// Uses these tables from the next entry on. The processor tags cached translations by the root, so those of other
    /// tables stay.
    pub(super) fn point(&mut self, ept: EptPointer) {
        self.write(control::EPTP_FULL, ept.0);
    }

    /// Chooses whether a pending interrupt of the machine causes an exit or goes to the guest.
    pub(super) fn exit_on_interrupt(&mut self, on: bool) {
        let others = self.read(control::PINBASED_EXEC_CONTROLS) & !EXTERNAL_INTERRUPT;
        self.write(control::PINBASED_EXEC_CONTROLS, others | if on { EXTERNAL_INTERRUPT } else { 0 });
    }

    /// Runs the guest until an exit. The next entry delivers an event whose delivery the exit interrupted.
    pub(super) fn enter(&mut self, registers: &mut Registers) -> Result<(), VmxError> {
        // SAFETY: the VMCS is current and complete; the code that made the tables limits the memory that the guest can
        // reach.
        let refused = unsafe { switch(registers, self.launched) };
        if refused {
            return Err(VmxError::Entry(self.error()));
        }
        self.launched = true;
        let event = self.read(ro::IDT_VECTORING_INFO);
        if event & EVENT_VALID != 0 {
            let error_code = self.read(ro::IDT_VECTORING_ERR_CODE);
            let length = self.read(ro::VMEXIT_INSTRUCTION_LEN);
            self.write(control::VMENTRY_EXCEPTION_ERR_CODE, error_code);
            self.write(control::VMENTRY_INSTRUCTION_LEN, length);
            self.write(control::VMENTRY_INTERRUPTION_INFO_FIELD, event & EVENT_BITS);
        }
        Ok(())
    }

    /// Moves the guest past the instruction that caused the exit.
    pub(super) fn skip(&mut self) {
        let next = self.read(guest::RIP) + self.read(ro::VMEXIT_INSTRUCTION_LEN);
        self.write(guest::RIP, next);
    }

    /// Gives the guest a general protection fault at the next entry.
    pub(super) fn protection_fault(&mut self) {
        const HARDWARE_EXCEPTION: u64 = 3 << 8;
        const GENERAL_PROTECTION: u64 = 13;
        self.write(control::VMENTRY_EXCEPTION_ERR_CODE, 0);
        let event = EVENT_VALID | EVENT_ERROR_CODE | HARDWARE_EXCEPTION | GENERAL_PROTECTION;
        self.write(control::VMENTRY_INTERRUPTION_INFO_FIELD, event);
    }

    fn error(&self) -> u64 {
        self.read(ro::VM_INSTRUCTION_ERROR)
    }

    /// Sets the causes of exits, and the registers that entry and exit exchange.
    fn controls(&mut self) -> Result<(), VmxError> {
        // Primary: secondary controls, and a bitmap of MSRs.
        const SECONDARY: u32 = 1 << 31;
        const MSR_BITMAP: u32 = 1 << 28;
        // Secondary: EPT, and instructions that CPUID shows but that would fault in a guest without these controls.
        const EPT: u32 = 1 << 1;
        const RDTSCP: u32 = 1 << 3;
        const INVPCID: u32 = 1 << 12;
        const XSAVES: u32 = 1 << 20;
        // Exit: the host is 64-bit code; PAT and EFER are exchanged. Entry: the same.
        const HOST_64: u32 = 1 << 9;
        const EXIT_PAT_EFER: u32 = 0b1111 << 18;
        const GUEST_64: u32 = 1 << 9;
        const ENTRY_PAT_EFER: u32 = 0b11 << 14;

        let pin = allowed(msr::IA32_VMX_TRUE_PINBASED_CTLS, 0, 0)?;
        let primary = allowed(msr::IA32_VMX_TRUE_PROCBASED_CTLS, SECONDARY | MSR_BITMAP, 0)?;
        let secondary = allowed(msr::IA32_VMX_PROCBASED_CTLS2, EPT, RDTSCP | INVPCID | XSAVES)?;
        let exit = allowed(msr::IA32_VMX_TRUE_EXIT_CTLS, HOST_64 | EXIT_PAT_EFER, 0)?;
        let entry = allowed(msr::IA32_VMX_TRUE_ENTRY_CTLS, GUEST_64 | ENTRY_PAT_EFER, 0)?;
        let msrs = self.msrs.address();
        for (field, value) in [
            (control::PINBASED_EXEC_CONTROLS, pin),
            (control::PRIMARY_PROCBASED_EXEC_CONTROLS, primary),
            (control::SECONDARY_PROCBASED_EXEC_CONTROLS, secondary),
            (control::VMEXIT_CONTROLS, exit),
            (control::VMENTRY_CONTROLS, entry),
            (control::MSR_BITMAPS_ADDR_FULL, msrs),
            (control::EXCEPTION_BITMAP, 0),
            (control::PAGE_FAULT_ERR_CODE_MASK, 0),
            (control::PAGE_FAULT_ERR_CODE_MATCH, 0),
            (control::CR3_TARGET_COUNT, 0),
            (control::VMEXIT_MSR_STORE_COUNT, 0),
            (control::VMEXIT_MSR_LOAD_COUNT, 0),
            (control::VMENTRY_MSR_LOAD_COUNT, 0),
            (control::VMENTRY_INTERRUPTION_INFO_FIELD, 0),
        ] {
            self.write(field, value);
        }
        Ok(())
    }
}

/// Makes the region at this address the current VMCS, empty.
fn make_current(region: u64) -> Result<(), VmxError> {
    let (clear, load): (u8, u8);
    // SAFETY: the region is a page of our own with the right revision, kept for as long as it is current.
    unsafe {
        asm!("vmclear [{region}]", "setbe {clear}", "vmptrld [{region}]", "setbe {load}",
            region = in(reg) &raw const region, clear = out(reg_byte) clear, load = out(reg_byte) load,
            options(nostack));
    }
    match (clear, load) {
        (0, 0) => Ok(()),
        (0, _) => Err(VmxError::Refused("VMPTRLD")),
        (..) => Err(VmxError::Refused("VMCLEAR")),
    }
}

/// A control word: the bits that its capability register demands, those in `required`, and those in `wanted` that it
/// allows.
fn allowed(register: u32, required: u32, wanted: u32) -> Result<u64, VmxError> {
    let word = capability(register);
    let (always, may) = (word as u32, (word >> 32) as u32);
    match required & !may {
        0 => Ok(u64::from(always | required | wanted & may)),
        bits => Err(VmxError::Unsupported { msr: register, bits }),
    }
}
