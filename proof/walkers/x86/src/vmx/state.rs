//! The state in which a guest begins, and the host's state after an exit.

use super::enable::read_control_registers;
use super::tables::HostTables;
use super::vmcs::Vmcs;
use crate::cpu::{EFER, PAT, rdmsr};
use crate::processor::LongMode;
use core::arch::asm;
use x86::vmx::vmcs::{control, guest, host};

/// The guest's GDT and its selectors, by [`LongMode`].
const GDT_BYTES: u64 = 32;
const CODE_SELECTOR: u64 = 0x10;
const DATA_SELECTOR: u64 = 0x18;

/// CR4.VMXE: must be set while VMX is on, and no guest needs to see it.
const VMXE: u64 = 1 << 13;
/// CR0.NE: likewise must be set.
const NE: u64 = 1 << 5;

impl Vmcs {
    /// The guest's registers, and the bits of CR0 and CR4 that the guest cannot change.
    pub(super) fn guest_state(&mut self, start: &LongMode) {
        const PG_ET_MP_PE: u64 = 1 << 31 | 1 << 4 | 1 << 1 | 1 << 0;
        const PAE: u64 = 1 << 5;
        const NXE_LMA_LME: u64 = 1 << 11 | 1 << 10 | 1 << 8;
        const NO_VMCS: u64 = u64::MAX;
        for (field, value) in [
            (guest::CR0, PG_ET_MP_PE | NE),
            (control::CR0_GUEST_HOST_MASK, NE),
            (control::CR0_READ_SHADOW, NE),
            (guest::CR4, PAE | VMXE),
            (control::CR4_GUEST_HOST_MASK, VMXE),
            (control::CR4_READ_SHADOW, 0),
            (guest::CR3, start.cr3.0),
            (guest::IA32_EFER_FULL, NXE_LMA_LME),
            (guest::IA32_PAT_FULL, pat()),
            (guest::RIP, start.rip),
            (guest::RSP, start.rsp),
            (guest::RFLAGS, 1 << 1),
            (guest::DR7, 1 << 10),
            (guest::GDTR_BASE, start.gdt.0),
            (guest::GDTR_LIMIT, GDT_BYTES - 1),
            (guest::IDTR_BASE, 0),
            (guest::IDTR_LIMIT, 0),
            (guest::LINK_PTR_FULL, NO_VMCS),
            (guest::INTERRUPTIBILITY_STATE, 0),
            (guest::ACTIVITY_STATE, 0),
            (guest::PENDING_DBG_EXCEPTIONS, 0),
            (guest::IA32_DEBUGCTL_FULL, 0),
            (guest::IA32_SYSENTER_CS, 0),
            (guest::IA32_SYSENTER_ESP, 0),
            (guest::IA32_SYSENTER_EIP, 0),
        ] {
            self.write(field, value);
        }
        self.segments();
    }

    fn segments(&mut self) {
        // Access rights: type, S, present, L or D, granularity.
        const CODE_64: u64 = 0xa09b;
        const DATA: u64 = 0xc093;
        const BUSY_TSS: u64 = 0x8b;
        const UNUSABLE: u64 = 1 << 16;
        const ALL: u64 = 0xffff_ffff;
        // In the VMCS's order of fields, two apart: ES, CS, SS, DS, FS, GS, LDTR, TR.
        let data = (DATA_SELECTOR, ALL, DATA);
        let segments = [
            data,
            (CODE_SELECTOR, ALL, CODE_64),
            data,
            data,
            data,
            data,
            (0, 0, UNUSABLE),
            (0, 103, BUSY_TSS),
        ];
        for (index, (selector, limit, rights)) in (0..).zip(segments) {
            let field = |first: u32| first + 2 * index;
            self.write(field(guest::ES_SELECTOR), selector);
            self.write(field(guest::ES_LIMIT), limit);
            self.write(field(guest::ES_ACCESS_RIGHTS), rights);
            self.write(field(guest::ES_BASE), 0);
        }
    }

    /// The host's state after an exit: the present state of this processor. `switch` writes the stack and instruction
    /// pointers at each entry.
    pub(super) fn host_state(&mut self, tables: &HostTables) {
        let (cr0, cr3, cr4) = read_control_registers();
        // SAFETY: every processor with long mode has the register.
        let efer = unsafe { rdmsr(EFER) };
        let (code, data): (u16, u16);
        // SAFETY: reads two selectors.
        unsafe { asm!("mov {:x}, cs", "mov {:x}, ss", out(reg) code, out(reg) data, options(nomem, nostack)) }
        for (field, value) in [
            (host::CR0, cr0),
            (host::CR3, cr3),
            (host::CR4, cr4),
            (host::IA32_PAT_FULL, pat()),
            (host::IA32_EFER_FULL, efer),
            (host::CS_SELECTOR, u64::from(code)),
            (host::SS_SELECTOR, u64::from(data)),
            (host::DS_SELECTOR, 0),
            (host::ES_SELECTOR, 0),
            (host::FS_SELECTOR, 0),
            (host::GS_SELECTOR, 0),
            (host::TR_SELECTOR, u64::from(tables.tr)),
            (host::TR_BASE, tables.tss),
            (host::GDTR_BASE, tables.gdt),
            (host::IDTR_BASE, 0),
            (host::FS_BASE, 0),
            (host::GS_BASE, 0),
            (host::IA32_SYSENTER_CS, 0),
            (host::IA32_SYSENTER_ESP, 0),
            (host::IA32_SYSENTER_EIP, 0),
        ] {
            self.write(field, value);
        }
    }
}

fn pat() -> u64 {
    // SAFETY: every processor with long mode has the register.
    unsafe { rdmsr(PAT) }
}
