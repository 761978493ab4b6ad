//! AMD-V: a guest under nested paging.
//!
//! Everything except memory is the machine's own: interrupts, ports, MSRs (except writes to `VM_HSAVE_PA`) and CPUID.
//! VMRUN exchanges most registers itself; the assembly below exchanges the rest. VMLOAD and VMSAVE around it exchange
//! the hidden parts of segment registers, which the hypervisor does not use.

use crate::cpu::{self, EFER};
use crate::kick;
use crate::paging::{self, Pae};
use crate::processor::{
    Exit, HYPERVISOR_REGISTERS, LongMode, MemoryFault, Processor, Registers, WRMSR_BYTES,
};
use crate::vmcb::{
    EVENT_EXCEPTION, EVENT_VALID, FLUSH_ALL, INTERCEPT_CPUID, INTERCEPT_INTERRUPT, INTERCEPT_INVLPGA,
    INTERCEPT_IRET, INTERCEPT_MSRS, INTERCEPT_NMI, INTERCEPT_PORTS, INTERCEPT_SHARED, INTERCEPT_SHUTDOWN,
    INTERCEPT_SVM, INTERCEPT_VMRUN_VMMCALL, OFFERED, OWN_INTERRUPTS, Segment, Vmcb, exit,
};
use alloc::boxed::Box;
use core::any::Any;
use slat::{Access, Format, Gpa, Pfn};

core::arch::global_asm!(include_str!("svm.s"));

unsafe extern "C" {
    /// Runs the guest of the block at this physical address until its next exit.
    fn svm_run(vmcb: *mut Vmcb, registers: *mut Registers);
}

/// The MSR with the physical address at which VMRUN saves the hypervisor's registers. Linux clears it when it stops a
/// processor, and an exit would then load registers from address 0.
pub const HOST_SAVE: u32 = 0xc001_0117;
/// The MSR that tells whether the firmware has disabled SVM.
pub const VM_CR: u32 = 0xc001_0114;
/// EFER: SVM is enabled.
pub const EFER_SVME: u64 = 1 << 12;
/// Long mode enabled and active, NX.
const EFER_LONG: u64 = 0xd00;
const VMMCALL_BYTES: u64 = 3;
const CPUID_BYTES: u64 = 2;
const PAUSE_BYTES: u64 = 2;
const HLT_BYTES: u64 = 1;
/// RFLAGS.IF.
const INTERRUPTS_ON: u64 = 1 << 9;
/// CR4.LA57.
const CR4_LA57: u64 = 1 << 12;
/// Write-back, write-through, uncached-minus, uncached; twice: the value after reset.
const PAT_AT_RESET: u64 = 0x0007_0406_0007_0406;
/// CR0 after reset: caching off, as after INIT, too, and the bit that is always set.
const CR0_AT_RESET: u64 = 0x6000_0010;

/// A processor of AMD's with one guest.
#[derive(Debug)]
pub struct Svm {
    vmcb: Box<Vmcb>,
    /// Two bits for each intercepted MSR.
    msrs: Box<Pages<2>>,
    /// Whether SVM's instructions exit.
    offers_svm: bool,
    /// A bit for each intercepted port, if there is one.
    ports: Option<Box<Pages<3>>>,
    /// The paging of a 32-bit host, for tables of that format.
    pae: Option<Pae>,
}

#[derive(Debug)]
#[repr(C, align(4096))]
struct Pages<const N: usize>([[u8; 4096]; N]);

/// Turns SVM on for this processor.
fn enable() {
    let area = Box::leak(Box::new(Pages([[0; 4096]])));
    // SAFETY: the maker of an `Svm` runs on a processor of AMD's, which has both; the area is the processor's for good.
    unsafe {
        cpu::wrmsr(EFER, cpu::rdmsr(EFER) | EFER_SVME);
        cpu::wrmsr(HOST_SAVE, area.0.as_ptr() as u64);
    }
}

impl Processor for Svm {
    const NAME: &'static str = "AMD-V";

    fn new(start: &LongMode) -> Self {
        let mut processor = Self::blank();
        let save = &mut processor.vmcb.save;
        let data = Segment { selector: 0x18, attributes: 0xc93, limit: !0, base: 0 };
        (save.es, save.ss, save.ds, save.fs, save.gs) = (data, data, data, data, data);
        save.cs = Segment { selector: 0x10, attributes: 0xa9b, limit: !0, base: 0 };
        save.gdtr = Segment { limit: 31, base: start.gdt.0, ..Segment::default() };
        save.efer = EFER_LONG | EFER_SVME;
        (save.cr0, save.cr3, save.cr4) = (0x8000_0033, start.cr3.0, 0x20);
        (save.rip, save.rsp) = (start.rip, start.rsp);
        processor
    }

    fn entered(entry: u32) -> Option<Self> {
        let mut processor = Self::blank();
        let save = &mut processor.vmcb.save;
        let data = Segment { selector: 0x18, attributes: 0xc93, limit: !0, base: 0 };
        (save.es, save.ss, save.ds, save.fs, save.gs) = (data, data, data, data, data);
        save.cs = Segment { selector: 0x10, attributes: 0xc9b, limit: !0, base: 0 };
        (save.efer, save.cr0, save.rip) = (EFER_SVME, 0x11, entry.into());
        Some(processor)
    }

    fn started(page: u8) -> Option<Self> {
        let mut processor = Self::blank();
        let save = &mut processor.vmcb.save;
        let data = Segment { selector: 0, attributes: 0x93, limit: 0xffff, base: 0 };
        (save.es, save.ss, save.ds, save.fs, save.gs) = (data, data, data, data, data);
        let (selector, base) = (u16::from(page) << 8, u64::from(page) << 12);
        save.cs = Segment { selector, attributes: 0x9b, limit: 0xffff, base };
        let table = Segment { limit: 0xffff, ..Segment::default() };
        (save.gdtr, save.idtr) = (table, table);
        save.efer = EFER_SVME;
        save.cr0 = CR0_AT_RESET;
        Some(processor)
    }

    fn set_root<F: Format>(&mut self, root: Pfn) {
        // Nested tables are walked in the host's own paging mode.
        match F::LEVELS {
            3 => _ = self.pae.get_or_insert_with(Pae::new),
            levels => {
                self.pae = None;
                paging::set_levels(levels);
            }
        }
        self.vmcb.control.nested_cr3 = root.address();
    }

    fn run(&mut self, registers: &mut Registers) -> Exit {
        loop {
            if let Some(exit) = self.run_once(registers) {
                return exit;
            }
        }
    }

    fn flush(&mut self) {
        self.vmcb.control.tlb_control = FLUSH_ALL;
    }

    fn exit_on_interrupt(&mut self, on: bool) {
        let [events, ..] = &mut self.vmcb.control.intercepts;
        *events &= !(INTERCEPT_INTERRUPT | INTERCEPT_IRET);
        *events |= if on { INTERCEPT_INTERRUPT } else { 0 };
    }

    fn exit_on_port_write(&mut self, port: u16) {
        let control = &mut self.vmcb.control;
        let map = self.ports.get_or_insert_with(|| Box::new(Pages([[0; 4096]; 3])));
        map.0.as_flattened_mut()[usize::from(port / 8)] |= 1 << (port % 8);
        control.port_map = (&raw const **map) as u64;
        control.intercepts[0] |= INTERCEPT_PORTS;
    }

    fn exit_on_identify(&mut self) {
        self.vmcb.control.intercepts[0] |= INTERCEPT_CPUID;
    }

    fn exit_on_svm(&mut self) {
        self.offers_svm = true;
        let [first, second, _] = &mut self.vmcb.control.intercepts;
        (*first, *second) = (*first | INTERCEPT_INVLPGA, *second | INTERCEPT_SVM);
        self.exit_on_msrs(0, &[]);
    }

    fn exit_on_kick(&mut self) {
        // SAFETY: SVM is on for this processor since the guest was made on it.
        unsafe { kick::wait_for_guest() };
        self.vmcb.control.intercepts[0] |= INTERCEPT_NMI;
    }

    fn share(&mut self, number: u32) -> bool {
        let control = &mut self.vmcb.control;
        // 0 is the hypervisor's.
        control.asid = number + 1;
        control.intercepts[0] |= INTERCEPT_INTERRUPT | INTERCEPT_SHARED;
        control.interrupt = OWN_INTERRUPTS;
        true
    }

    fn offer(&mut self, vector: Option<u8>) {
        let control = &mut self.vmcb.control;
        control.interrupt = OWN_INTERRUPTS | vector.map_or(0, |_| OFFERED);
        control.vector = vector.map_or(0, u32::from);
    }

    fn offered(&self) -> Option<u8> {
        let control = &self.vmcb.control;
        (control.interrupt & OFFERED != 0).then_some(control.vector as u8)
    }

    fn state(&self) -> (bool, u64) {
        (self.vmcb.save.rflags & INTERRUPTS_ON != 0, self.vmcb.save.cr4)
    }

    fn tables(&self) -> (Gpa, u8) {
        let save = &self.vmcb.save;
        (Gpa(save.cr3), if save.cr4 & CR4_LA57 == 0 { 4 } else { 5 })
    }

    fn rip(&self) -> u64 {
        self.vmcb.save.rip
    }

    fn set_rip(&mut self, rip: u64) {
        self.vmcb.save.rip = rip;
    }
}

impl Svm {
    /// Returns the processor with the additional interface of AMD's, if it is one.
    pub fn of(processor: &mut impl Processor) -> Option<&mut Self> {
        (processor as &mut dyn Any).downcast_mut()
    }

    /// Makes a guest with the state that all start modes share.
    fn blank() -> Self {
        enable();
        let mut vmcb = Box::new(Vmcb::new());
        let Vmcb { control, save } = &mut *vmcb;
        control.intercepts = [INTERCEPT_SHUTDOWN | INTERCEPT_MSRS, INTERCEPT_VMRUN_VMMCALL, 0];
        let mut msrs = Box::new(Pages([[0; 4096]; 2]));
        let (byte, bits) = msr_bits(HOST_SAVE).unwrap_or_default();
        msrs.0.as_flattened_mut()[byte] = bits & WRITES;
        control.msr_map = (&raw const *msrs) as u64;
        (control.asid, control.nested, control.tlb_control) = (1, 1, FLUSH_ALL);
        save.ldtr = Segment { attributes: 0x82, ..Segment::default() };
        save.tr = Segment { attributes: 0x8b, limit: 0xffff, ..Segment::default() };
        (save.dr6, save.dr7, save.rflags, save.pat) = (0xffff_0ff0, 0x400, 2, PAT_AT_RESET);
        Self { vmcb, msrs, offers_svm: false, ports: None, pae: None }
    }

    /// Returns the block, for state outside the trait.
    pub fn vmcb(&mut self) -> &mut Vmcb {
        &mut self.vmcb
    }

    /// Makes a block for guests of a guest: SVM's instructions exit, and interrupts of the machine.
    pub fn for_l2(asid: u32) -> Self {
        let mut new = Self::blank();
        new.exit_on_svm();
        new.vmcb.control.asid = asid;
        new
    }

    /// Sets the intercepted MSRs: the hypervisor's, and those in `wanted`, which begins at byte `first` of the map.
    pub fn exit_on_msrs(&mut self, first: usize, wanted: &[u8]) {
        let map = &mut self.msrs.0.as_flattened_mut()[first..];
        map.iter_mut().zip(wanted).for_each(|(byte, wanted)| *byte = *wanted);
        for register in SVM_REGISTERS {
            if let Some((byte, bits)) = msr_bits(register) {
                self.msrs.0.as_flattened_mut()[byte] |= bits;
            }
        }
    }

    /// Makes accesses to every port exit.
    pub fn exit_on_ports(&mut self) {
        let map = self.ports.get_or_insert_with(|| Box::new(Pages([[!0; 4096]; 3])));
        self.vmcb.control.port_map = (&raw const **map) as u64;
    }

    /// Returns the exit, and moves the guest past its instruction of `bytes` bytes.
    fn past(&mut self, bytes: u64, exit: Exit) -> Exit {
        self.vmcb.save.rip += bytes;
        exit
    }

    /// Does one VMRUN. The block has the reason of the exit; the next VMRUN delivers an event whose delivery was cut
    /// short.
    pub fn exchange(&mut self, registers: &mut Registers) {
        self.vmcb.save.rax = registers.rax;
        // SAFETY: the block is whole and stays where it is; the code that set the root limits
        // the memory that the guest can reach; the registers that the assembly does not keep are those that a call may
        // change.
        unsafe {
            match &self.pae {
                Some(pae) => pae.run(&mut self.vmcb, registers),
                None => svm_run(&raw mut *self.vmcb, registers),
            }
        }
        registers.rax = self.vmcb.save.rax;
        let control = &mut self.vmcb.control;
        control.tlb_control = 0;
        control.inject = interrupted(control.exit_interrupt);
        // Otherwise VMRUN would refuse a guest that clears SVME.
        self.vmcb.save.efer |= EFER_SVME;
        if control.inject & EVENT_VALID != 0 && control.inject as u8 == control.vector as u8 {
            // It was being taken.
            control.interrupt &= !OFFERED;
        }
    }

    /// The same; `None` if the exit needs no answer.
    fn run_once(&mut self, registers: &mut Registers) -> Option<Exit> {
        self.exchange(registers);
        let control = &mut self.vmcb.control;
        let is_shared = control.interrupt & OWN_INTERRUPTS != 0;
        let (info, [events, ..]) = (control.exit_info_1, &mut control.intercepts);
        Some(match control.exit_code {
            exit::NESTED_FAULT => Exit::Memory(memory_fault(info, Gpa(control.exit_info_2))),
            exit::INTERRUPT if is_shared => Exit::Interrupt,
            exit::HLT => self.past(HLT_BYTES, Exit::Halt),
            exit::PAUSE => self.past(PAUSE_BYTES, Exit::Pause),
            exit::CPUID => self.past(CPUID_BYTES, Exit::Identify),
            exit::INTERRUPT => {
                // The guest must take this interrupt; the end of its handler enables the intercept again.
                *events ^= INTERCEPT_INTERRUPT | INTERCEPT_IRET;
                Exit::Interrupt
            }
            exit::NMI => {
                // SAFETY: only `exit_on_kick` asks for this exit; interrupts are never on here.
                unsafe { kick::take() };
                Exit::Kick
            }
            exit::IRET => {
                *events ^= INTERCEPT_INTERRUPT | INTERCEPT_IRET;
                return None;
            }
            exit::PORT => {
                let (port, is_read) = ((info >> 16) as u16, info & 1 == 1);
                if is_read {
                    registers.rax = read_port(port, info, registers.rax);
                }
                self.vmcb.save.rip = control.exit_info_2;
                if is_read {
                    return None;
                }
                Exit::PortWrite { port, value: registers.rax as u32 }
            }
            exit::MSR if self.offers_svm && SVM_REGISTERS.contains(&(registers.rcx as u32)) => {
                Exit::Other { code: exit::MSR, info }
            }
            exit::MSR => {
                let (register, (first, count)) = (registers.rcx as u32, HYPERVISOR_REGISTERS);
                let value = registers.rdx << 32 | registers.rax & 0xffff_ffff;
                self.vmcb.save.rip += WRMSR_BYTES;
                if info & 1 == 0 || register.wrapping_sub(first) >= count {
                    // The write is dropped.
                    return None;
                }
                Exit::RegisterWrite { register, value }
            }
            exit::SHUTDOWN => Exit::Shutdown,
            exit::VMMCALL => self.past(VMMCALL_BYTES, Exit::Call),
            code => Exit::Other { code, info },
        })
    }
}

/// SVM's MSRs: a guest with SVM has its own values of them.
const SVM_REGISTERS: [u32; 3] = [EFER, VM_CR, HOST_SAVE];
/// The write bits of all four MSRs in a byte of the map.
const WRITES: u8 = 0xaa;

/// Returns an MSR's position in the map: the byte, and the bits for reading and writing. `None` for an MSR that always
/// exits.
pub fn msr_bits(register: u32) -> Option<(usize, u8)> {
    let block =
        [0, 0xc000_0000, 0xc001_0000].iter().position(|first| register.wrapping_sub(*first) < 0x2000)?;
    let offset = (register & 0x1fff) as usize;
    Some((block * 0x800 + offset / 4, 0b11 << (offset % 4 * 2)))
}

const EVENT_TYPE: u64 = 0x700;

/// Returns the event whose delivery an exit cut short, in the manual's form. QEMU 7.2 and 10.0 report an interrupt that
/// a nested fault cut short as an exception (type 3), whose vectors end at 31.
pub fn cut_short(event: u64) -> u64 {
    if event & EVENT_TYPE == EVENT_EXCEPTION && event & 0xff > 31 { event & !EVENT_TYPE } else { event }
}

/// Returns the event to deliver again after an exit cut its delivery short. Not an instruction's own event (INT3, INTO,
/// INT): the guest is still at that instruction and repeats it, and a delivery from here would return to the
/// instruction, not behind it.
fn interrupted(event: u64) -> u64 {
    const SOFTWARE: u64 = 0x400;
    const BREAKPOINT: u64 = 3;
    const OVERFLOW: u64 = 4;
    match (event & EVENT_TYPE, event & 0xff) {
        _ if event & EVENT_VALID == 0 => 0,
        (SOFTWARE, _) | (EVENT_EXCEPTION, BREAKPOINT | OVERFLOW) => 0,
        _ => cut_short(event),
    }
}

/// Makes a guest's read of an intercepted port: one, two or four bytes, as bits 4 to 6 of `info` say.
fn read_port(port: u16, info: u64, rax: u64) -> u64 {
    // SAFETY: the guest may read all ports, and would have read this one now.
    unsafe {
        match info >> 4 & 7 {
            1 => rax & !0xff | u64::from(cpu::inb(port)),
            2 => rax & !0xffff | u64::from(cpu::inw(port)),
            _ => u64::from(cpu::inl(port)),
        }
    }
}

fn memory_fault(raw: u64, gpa: Gpa) -> MemoryFault {
    let bit = |bit: u32| raw >> bit & 1 == 1;
    let access = match () {
        () if bit(4) => Access::Fetch,
        () if bit(1) => Access::Write,
        () => Access::Read,
    };
    let (present, misconfigured, in_guest_tables) = (bit(0), bit(3), bit(33));
    MemoryFault { gpa, access, present, misconfigured, in_guest_tables, allowed: None, raw }
}
