//! Intel VT-x: one guest behind EPT.
//!
//! In the order of use:
//!
//! | file | contents |
//! |---|---|
//! | `enable`, `tables` | turns VMX on for this processor; the TSS that VMX needs |
//! | `vmcs` | the control structure: one virtual processor's state, and the causes of its exits |
//! | `state` | the state in which the guest begins, and the host's state after an exit |
//! | `ept` | the pointer to the tables; INVEPT; the decoding of a violation |
//! | `switch` | entry into the guest, and exit |
//!
//! Only the exits that VMX demands occur: ports, MSRs and interrupts are the machine's own. CPUID, XSETBV and MSRs
//! outside the two architectural ranges always exit; [`Vmx::run`](Processor::run) executes them for the guest and goes
//! on.

mod enable;
mod ept;
mod region;
mod state;
mod switch;
mod tables;
mod vmcs;

pub use enable::{Features, VmxError};
pub use ept::EptPointer;

use crate::processor::{Exit, LongMode, Processor, Registers};
use core::arch::asm;
use slat::{Format, Gpa, Pfn};
use vmcs::Vmcs;
use x86::vmx::vmcs::{guest, ro};

/// CR4.LA57: five levels of paging.
const CR4_LA57: u64 = 1 << 12;

/// The reasons of an exit (Intel SDM volume 3, appendix C).
mod reason {
    pub const INTERRUPT: u64 = 1;
    pub const TRIPLE_FAULT: u64 = 2;
    pub const CPUID: u64 = 10;
    pub const VMCALL: u64 = 18;
    pub const READ_MSR: u64 = 31;
    pub const WRITE_MSR: u64 = 32;
    pub const EPT_VIOLATION: u64 = 48;
    pub const EPT_MISCONFIGURATION: u64 = 49;
    pub const XSETBV: u64 = 55;
}

/// An Intel processor with one guest.
pub struct Vmx {
    vmcs: Vmcs,
    features: Features,
    ept: EptPointer,
    /// Whether interrupts cause an exit. The interrupt that caused the last exit does not cause another.
    watching: bool,
}

impl Processor for Vmx {
    const NAME: &'static str = "Intel VT-x";

    /// # Panics
    /// If the processor lacks a needed feature. The message names it.
    fn new(start: &LongMode) -> Self {
        let begin = || {
            let vmx = enable::enable()?;
            let (vmcs, features) = (Vmcs::new(&vmx, start)?, vmx.features);
            Ok(Self { vmcs, features, ept: EptPointer::default(), watching: false })
        };
        begin().unwrap_or_else(|error: VmxError| panic!("{error}"))
    }

    fn set_root<F: Format>(&mut self, root: Pfn) {
        let ept = EptPointer::new::<F>(root);
        if ept != self.ept {
            self.ept = ept;
            self.vmcs.point(ept);
        }
    }

    fn run(&mut self, registers: &mut Registers) -> Exit {
        loop {
            self.vmcs.enter(registers).unwrap_or_else(|error| panic!("{error}"));
            if self.watching {
                // Off for the pending interrupt: the guest takes it next.
                let pending = self.vmcs.read(ro::EXIT_REASON) == reason::INTERRUPT;
                self.vmcs.exit_on_interrupt(!pending);
            }
            if let Some(exit) = self.exit(registers) {
                return exit;
            }
        }
    }

    fn flush(&mut self) {
        ept::invept(self.ept);
    }

    fn exit_on_interrupt(&mut self, on: bool) {
        self.watching = on;
        self.vmcs.exit_on_interrupt(on);
    }

    fn tables(&self) -> (Gpa, u8) {
        let levels = if self.vmcs.read(guest::CR4) & CR4_LA57 == 0 { 4 } else { 5 };
        (Gpa(self.vmcs.read(guest::CR3)), levels)
    }

    fn rip(&self) -> u64 {
        self.vmcs.read(guest::RIP)
    }

    fn set_rip(&mut self, rip: u64) {
        self.vmcs.write(guest::RIP, rip);
    }
}

impl Vmx {
    /// The features of this processor's EPT.
    pub fn features(&self) -> Features {
        self.features
    }

    /// The reason of the exit; `None` where this function has executed the instruction and the guest can go on at once.
    fn exit(&mut self, registers: &mut Registers) -> Option<Exit> {
        let code = self.vmcs.read(ro::EXIT_REASON);
        let gpa = || Gpa(self.vmcs.read(ro::GUEST_PHYSICAL_ADDR_FULL));
        Some(match code {
            reason::EPT_VIOLATION => {
                Exit::Memory(ept::violation(self.vmcs.read(ro::EXIT_QUALIFICATION), gpa()))
            }
            reason::EPT_MISCONFIGURATION => Exit::Memory(ept::misconfiguration(gpa())),
            reason::INTERRUPT => Exit::Interrupt,
            reason::TRIPLE_FAULT => Exit::Shutdown,
            reason::VMCALL => {
                self.vmcs.skip();
                Exit::Call
            }
            reason::CPUID => {
                cpuid(registers, self.vmcs.read(guest::CR4));
                self.vmcs.skip();
                return None;
            }
            reason::XSETBV => {
                xsetbv(registers);
                self.vmcs.skip();
                return None;
            }
            reason::READ_MSR | reason::WRITE_MSR => {
                self.vmcs.protection_fault();
                return None;
            }
            code => Exit::Other { code, info: self.vmcs.read(ro::EXIT_QUALIFICATION) },
        })
    }
}

/// CPUID with the processor's answer, except for VMX, which a guest cannot have, and OSXSAVE, which mirrors the guest's
/// CR4.
fn cpuid(registers: &mut Registers, cr4: u64) {
    const VMX: u32 = 1 << 5;
    const OSXSAVE: u32 = 1 << 27;
    const CR4_OSXSAVE: u64 = 1 << 18;
    let leaf = registers.rax as u32;
    let answer = core::arch::x86_64::__cpuid_count(leaf, registers.rcx as u32);
    let ecx = match leaf {
        1 => answer.ecx & !(VMX | OSXSAVE) | if cr4 & CR4_OSXSAVE != 0 { OSXSAVE } else { 0 },
        _ => answer.ecx,
    };
    registers.rax = u64::from(answer.eax);
    registers.rbx = u64::from(answer.ebx);
    registers.rcx = u64::from(ecx);
    registers.rdx = u64::from(answer.edx);
}

fn xsetbv(registers: &Registers) {
    let (index, low, high) = (registers.rcx as u32, registers.rax as u32, registers.rdx as u32);
    // SAFETY: CR4.OSXSAVE is set here since VMX is on; this side uses none of the state that the register is about. A
    // value that the processor refuses ends this program, as it would end the guest.
    unsafe { asm!("xsetbv", in("ecx") index, in("eax") low, in("edx") high, options(nomem, nostack)) }
}
