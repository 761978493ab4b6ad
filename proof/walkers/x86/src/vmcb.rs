//! AMD's virtual machine control block as a type (APM volume 2, appendix B): 4 KiB that VMRUN reads and writes.
//!
//! Unused fields are padding; the code checks the offsets of the others.

use core::mem::offset_of;

/// Intercepts, and the results of VMRUN.
#[derive(Debug)]
#[repr(C)]
pub struct Control {
    /// Intercepted control registers, debug registers and exceptions.
    pub accesses: [u32; 3],
    /// Intercepted events and instructions: [`INTERCEPT_INTERRUPT`] and others, in the order of the manual.
    pub intercepts: [u32; 3],
    _pause: [u8; 0x28],
    /// Address of the map of intercepted ports: three pages, a bit for each port.
    pub port_map: u64,
    /// Address of the map of intercepted MSRs: two pages, two bits for each register.
    pub msr_map: u64,
    /// Offset of the guest's time-stamp counter.
    pub tsc_offset: u64,
    /// The guest's tag in the TLB; never 0.
    pub asid: u32,
    /// Flush of the next VMRUN: [`FLUSH_ALL`], or nothing.
    pub tlb_control: u32,
    /// The virtual interrupt: [`OFFERED`] and others.
    pub interrupt: u32,
    /// Its vector.
    pub vector: u32,
    /// Bit 0: no interrupt is taken before the end of the next instruction.
    pub shadow: u64,
    /// Reason of the exit.
    pub exit_code: u64,
    /// First word of information; for a nested fault, the kind of the access.
    pub exit_info_1: u64,
    /// Second word; for a nested fault, the guest-physical address.
    pub exit_info_2: u64,
    /// The event whose delivery the exit cut short.
    pub exit_interrupt: u64,
    /// 1 enables nested paging.
    pub nested: u64,
    _secure: [u64; 2],
    /// The event to deliver at the next VMRUN.
    pub inject: u64,
    /// The root of the nested tables, a physical address.
    pub nested_cr3: u64,
    _branches_and_clean: [u64; 2],
    /// The instruction after the intercepted one, if the processor supports it.
    pub next_rip: u64,
    _rest: [u8; 0x330],
}

/// A segment register: its visible and its hidden part.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Segment {
    /// Selector.
    pub selector: u16,
    /// Attributes: bits 47:40 and 55:52 of a descriptor, side by side.
    pub attributes: u16,
    /// Last byte, counted from the base.
    pub limit: u32,
    /// Base, a linear address.
    pub base: u64,
}

/// The guest's state that VMRUN, VMLOAD and VMSAVE exchange.
#[derive(Debug)]
#[repr(C)]
#[allow(missing_docs)] // each is named after its register
pub struct Save {
    pub es: Segment,
    pub cs: Segment,
    pub ss: Segment,
    pub ds: Segment,
    pub fs: Segment,
    pub gs: Segment,
    pub gdtr: Segment,
    pub ldtr: Segment,
    pub idtr: Segment,
    pub tr: Segment,
    _to_cpl: [u8; 0x2b],
    pub cpl: u8,
    _after_cpl: u32,
    pub efer: u64,
    _to_cr4: [u64; 14],
    pub cr4: u64,
    pub cr3: u64,
    pub cr0: u64,
    pub dr7: u64,
    pub dr6: u64,
    pub rflags: u64,
    pub rip: u64,
    _to_rsp: [u64; 11],
    pub rsp: u64,
    _shadow_stack: [u64; 3],
    pub rax: u64,
    pub star: u64,
    pub lstar: u64,
    pub cstar: u64,
    pub sfmask: u64,
    pub kernel_gs_base: u64,
    pub sysenter_cs: u64,
    pub sysenter_esp: u64,
    pub sysenter_eip: u64,
    pub cr2: u64,
    _to_pat: [u64; 4],
    pub pat: u64,
    _rest: [u8; 0x990],
}

impl Save {
    /// Copies the fields that VMRUN loads and an exit saves.
    pub fn take_run(&mut self, from: &Self) {
        (self.es, self.cs, self.ss, self.ds) = (from.es, from.cs, from.ss, from.ds);
        (self.gdtr, self.idtr, self.cpl, self.efer) = (from.gdtr, from.idtr, from.cpl, from.efer);
        (self.cr0, self.cr2, self.cr3, self.cr4) = (from.cr0, from.cr2, from.cr3, from.cr4);
        (self.dr6, self.dr7, self.rflags, self.rip) = (from.dr6, from.dr7, from.rflags, from.rip);
        (self.rsp, self.rax, self.pat) = (from.rsp, from.rax, from.pat);
    }

    /// Copies the fields that VMLOAD loads and VMSAVE saves.
    pub fn take_load(&mut self, from: &Self) {
        (self.fs, self.gs, self.ldtr, self.tr) = (from.fs, from.gs, from.ldtr, from.tr);
        (self.star, self.lstar, self.cstar, self.sfmask) = (from.star, from.lstar, from.cstar, from.sfmask);
        self.kernel_gs_base = from.kernel_gs_base;
        (self.sysenter_cs, self.sysenter_esp, self.sysenter_eip) =
            (from.sysenter_cs, from.sysenter_esp, from.sysenter_eip);
    }
}

/// The block.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Vmcb {
    /// Intercepts, and results.
    pub control: Control,
    /// The guest's registers.
    pub save: Save,
}

/// In the first word of [`Control::intercepts`]: an interrupt of the machine.
pub const INTERCEPT_INTERRUPT: u32 = 1 << 0;
/// In the first word: an interrupt that cannot be masked.
pub const INTERCEPT_NMI: u32 = 1 << 1;
/// In the first word: the end of an interrupt's handler.
pub const INTERCEPT_IRET: u32 = 1 << 20;
/// In the first word: CPUID.
pub const INTERCEPT_CPUID: u32 = 1 << 18;
/// In the first word: CPUID, PAUSE and HLT.
pub const INTERCEPT_SHARED: u32 = INTERCEPT_CPUID | 1 << 23 | 1 << 24;
/// In the first word: ports, by [`Control::port_map`].
pub const INTERCEPT_PORTS: u32 = 1 << 27;
/// In the first word: MSRs, by [`Control::msr_map`].
pub const INTERCEPT_MSRS: u32 = 1 << 28;
/// In the first word: triple fault.
pub const INTERCEPT_SHUTDOWN: u32 = 1 << 31;
/// In the second word: VMRUN to SKINIT: all that SVM adds but INVLPGA.
pub const INTERCEPT_SVM: u32 = 0x7f;
/// In the first word: INVLPGA.
pub const INTERCEPT_INVLPGA: u32 = 1 << 26;
/// In the second word: VMRUN (which must be intercepted) and VMMCALL.
pub const INTERCEPT_VMRUN_VMMCALL: u32 = 0b11;
/// In [`Control::interrupt`]: one is pending.
pub const OFFERED: u32 = 1 << 8;
/// In the same: it ignores the guest's priority; the machine's interrupts use the hypervisor's flag, not the guest's.
pub const OWN_INTERRUPTS: u32 = 1 << 20 | 1 << 24;
/// The bits of [`Control::interrupt`] that a guest's hypervisor may choose: the priority, a pending interrupt, and the
/// way in which it is taken.
pub const CHOSEN_INTERRUPTS: u32 = 0x1f_01ff;
/// In the same: the machine's interrupts heed the flag of the side that made VMRUN.
pub const INTERRUPTS_BY_HOST: u32 = 1 << 24;
/// In [`Control::inject`]: there is an event; an exception of this vector; with a word of its own in the upper half.
pub const EVENT_VALID: u64 = 1 << 31;
/// See above.
pub const EVENT_EXCEPTION: u64 = 3 << 8;
/// See above.
pub const EVENT_HAS_CODE: u64 = 1 << 11;
/// In [`Control::tlb_control`]: forget everything, of every guest.
pub const FLUSH_ALL: u32 = 1;

/// Exit codes.
pub mod exit {
    /// An interrupt of the machine is pending.
    pub const INTERRUPT: u64 = 0x60;
    /// A non-maskable interrupt is pending.
    pub const NMI: u64 = 0x61;
    /// The end of an interrupt's handler, before the instruction.
    pub const IRET: u64 = 0x74;
    /// An access to a port; the first word of information says which and how, the second has the next instruction.
    pub const PORT: u64 = 0x7b;
    /// CPUID, PAUSE, HLT: before the instruction.
    pub const CPUID: u64 = 0x72;
    /// See above.
    pub const PAUSE: u64 = 0x77;
    /// See above.
    pub const HLT: u64 = 0x78;
    /// An access to an MSR.
    pub const MSR: u64 = 0x7c;
    /// INVLPGA.
    pub const INVLPGA: u64 = 0x7a;
    /// VMRUN, and what follows it.
    pub const VMRUN: u64 = 0x80;
    /// See above.
    pub const VMLOAD: u64 = 0x82;
    /// See above.
    pub const VMSAVE: u64 = 0x83;
    /// See above.
    pub const STGI: u64 = 0x84;
    /// See above.
    pub const CLGI: u64 = 0x85;
    /// See above.
    pub const SKINIT: u64 = 0x86;
    /// VMRUN has refused the block.
    pub const INVALID: u64 = u64::MAX;
    /// Triple fault.
    pub const SHUTDOWN: u64 = 0x7f;
    /// VMMCALL.
    pub const VMMCALL: u64 = 0x81;
    /// Nested page fault.
    pub const NESTED_FAULT: u64 = 0x400;
}

const _: () = {
    assert!(size_of::<Vmcb>() == 4096);
    assert!(offset_of!(Vmcb, control.intercepts) == 0x00c);
    assert!(offset_of!(Vmcb, control.port_map) == 0x040);
    assert!(offset_of!(Vmcb, control.msr_map) == 0x048);
    assert!(offset_of!(Vmcb, control.tsc_offset) == 0x050);
    assert!(offset_of!(Vmcb, control.asid) == 0x058);
    assert!(offset_of!(Vmcb, control.shadow) == 0x068);
    assert!(offset_of!(Vmcb, control.interrupt) == 0x060);
    assert!(offset_of!(Vmcb, control.exit_code) == 0x070);
    assert!(offset_of!(Vmcb, control.nested) == 0x090);
    assert!(offset_of!(Vmcb, control.inject) == 0x0a8);
    assert!(offset_of!(Vmcb, control.nested_cr3) == 0x0b0);
    assert!(offset_of!(Vmcb, control.next_rip) == 0x0c8);
    assert!(offset_of!(Vmcb, save.es) == 0x400);
    assert!(offset_of!(Vmcb, save.tr) == 0x490);
    assert!(offset_of!(Vmcb, save.cpl) == 0x4cb);
    assert!(offset_of!(Vmcb, save.efer) == 0x4d0);
    assert!(offset_of!(Vmcb, save.cr4) == 0x548);
    assert!(offset_of!(Vmcb, save.rip) == 0x578);
    assert!(offset_of!(Vmcb, save.rsp) == 0x5d8);
    assert!(offset_of!(Vmcb, save.rax) == 0x5f8);
    assert!(offset_of!(Vmcb, save.cr2) == 0x640);
    assert!(offset_of!(Vmcb, save.pat) == 0x668);
};

impl Vmcb {
    /// All zero: a block that VMRUN refuses.
    pub const fn new() -> Self {
        // SAFETY: integers only; zero is a value of each.
        unsafe { core::mem::zeroed() }
    }
}

impl Default for Vmcb {
    fn default() -> Self {
        Self::new()
    }
}
