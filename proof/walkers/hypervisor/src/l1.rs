//! Exits of the guest L1 for its own SVM: VMRUN, the other instructions, and the MSRs.

use crate::error::Error;
use crate::guest_loop::Cpu;
use crate::nested::{L2, PROTECTION, UNDEFINED, answer, block_at, l1_page, raise};
use crate::options::Mistake;
use alloc::boxed::Box;
use core::arch::x86_64::__cpuid;
use slat::nested::{NptMode, NptTable};
use slat::{Access, Format, Gpa, Idle, PAGE_SIZE};
use slat_walker_x86::cpu::{EFER, physical_bits};
use slat_walker_x86::processor::{Processor, WRMSR_BYTES};
use slat_walker_x86::svm::{EFER_SVME, HOST_SAVE, Svm};
use slat_walker_x86::vmcb::{
    CHOSEN_INTERRUPTS, EVENT_VALID, INTERCEPT_INTERRUPT, INTERCEPT_INVLPGA, INTERCEPT_MSRS,
    INTERCEPT_SHUTDOWN, INTERCEPT_SVM, INTERRUPTS_BY_HOST, Vmcb, exit,
};

/// Bytes of each instruction of SVM's.
const SVM_BYTES: u64 = 3;
const CR4_PAE: u64 = 1 << 5;
const CR4_LA57: u64 = 1 << 12;
const CR4_SMEP: u64 = 1 << 20;
const EFER_LMA: u64 = 1 << 10;
const EFER_NXE: u64 = 1 << 11;
const WHOLE_PAGE: u64 = PAGE_SIZE - 1;

impl<P: Processor, F: Format> Cpu<'_, P, F> {
    /// Handles an exit of L1 for an instruction of SVM's, or for one of its MSRs. Returns false for any other exit.
    pub fn l1_exit(&mut self, idle: &mut Idle, code: u64, info: u64) -> Result<bool, Error> {
        let (Some(nested), Some(first)) = (&mut self.nested, Svm::of(&mut self.processor)) else {
            return Ok(false);
        };
        let Vmcb { control, save } = first.vmcb();
        let at = Gpa(self.registers.rax);
        match code {
            exit::MSR => {
                let (register, is_write) = (self.registers.rcx as u32, info & 1 == 1);
                if is_write {
                    let value = self.registers.rdx << 32 | self.registers.rax & 0xffff_ffff;
                    match register {
                        EFER => {
                            nested.enabled = value & EFER_SVME != 0;
                            save.efer = value & !EFER_LMA | save.efer & EFER_LMA | EFER_SVME;
                        }
                        HOST_SAVE => nested.save_area = value,
                        _ => {}
                    }
                } else {
                    let off = if nested.enabled { 0 } else { EFER_SVME };
                    answer(
                        &mut self.registers,
                        match register {
                            EFER => save.efer & !off,
                            HOST_SAVE => nested.save_area,
                            _ => 0,
                        },
                    );
                }
                save.rip += WRMSR_BYTES;
                return Ok(true);
            }
            exit::INVLPGA | exit::VMRUN | exit::VMLOAD..=exit::CLGI if nested.enabled => {}
            exit::INVLPGA | exit::VMRUN | exit::VMLOAD..=exit::SKINIT => {
                raise(control, UNDEFINED, false);
                return Ok(true);
            }
            _ => return Ok(false),
        }
        let is_done = match code {
            exit::STGI | exit::CLGI => {
                nested.global = code == exit::STGI;
                true
            }
            exit::INVLPGA => {
                nested.ours.flush();
                true
            }
            _ if at.offset() != 0 => false,
            exit::VMLOAD | exit::VMSAVE => {
                let (is_load, vm) = (code == exit::VMLOAD, &self.guest.vm);
                let access = if is_load { Access::Read } else { Access::Write };
                l1_page(vm, idle, at, access, |page| {
                    // SAFETY: in use until this ends.
                    let block = unsafe { block_at(page) };
                    if is_load { save.take_load(&block.save) } else { block.save.take_load(save) }
                })?
                .is_some()
            }
            _ => return self.vmrun(idle, at).map(|()| true),
        };
        if is_done {
            (save.rip, control.shadow) = (save.rip + SVM_BYTES, 0);
        } else {
            raise(control, PROTECTION, true);
        }
        Ok(true)
    }

    /// Handles L1's VMRUN.
    fn vmrun(&mut self, idle: &mut Idle, at: Gpa) -> Result<(), Error> {
        let vm = &self.guest.vm;
        let (Some(nested), Some(first)) = (&mut self.nested, Svm::of(&mut self.processor)) else {
            return Ok(());
        };
        // SAFETY: as for VMLOAD. Copied once: another of L1's processors may change it meanwhile.
        let block =
            l1_page(vm, idle, at, Access::Read, |page| Box::new(unsafe { (page as *const Vmcb).read() }))?;
        let l1 = first.vmcb();
        let Some(block) = block else {
            raise(&mut l1.control, PROTECTION, true);
            return Ok(());
        };
        nested.counts[0] += 1;
        (l1.save.rip, l1.control.shadow) = (l1.save.rip + SVM_BYTES, 0);
        let (theirs, ours) = (&block.control, &mut nested.ours);
        let page_of = |address: u64| Gpa(address & !WHOLE_PAGE);
        let l2 = L2 {
            at,
            table: match table_of(theirs.nested_cr3, l1) {
                Some(table) if is_sane(&block) => table,
                _ => return self.refuse(idle, at),
            },
            intercepts: theirs.intercepts,
            maps: (page_of(theirs.msr_map), page_of(theirs.port_map)),
            interrupt: theirs.interrupt,
            rax: self.registers.rax,
        };
        if theirs.intercepts[0] & INTERCEPT_MSRS != 0 {
            for first in [0, PAGE_SIZE] {
                // SAFETY: as above; bytes of a page.
                let copied = l1_page(vm, idle, l2.maps.0 + first, Access::Read, |page| unsafe {
                    ours.exit_on_msrs(first as usize, &*(page as *const [u8; PAGE_SIZE as usize]));
                })?;
                if copied.is_none() {
                    return self.refuse(idle, at);
                }
            }
        } else {
            ours.exit_on_msrs(0, &[0; 2 * PAGE_SIZE as usize]);
        }
        ours.exit_on_ports();
        let Vmcb { control, save } = ours.vmcb();
        let own =
            [INTERCEPT_SHUTDOWN | INTERCEPT_MSRS | INTERCEPT_INTERRUPT | INTERCEPT_INVLPGA, INTERCEPT_SVM, 0];
        control.accesses = theirs.accesses;
        control.intercepts = core::array::from_fn(|word| own[word] | theirs.intercepts[word]);
        control.tsc_offset = l1.control.tsc_offset.wrapping_add(theirs.tsc_offset);
        control.interrupt = theirs.interrupt & CHOSEN_INTERRUPTS | INTERRUPTS_BY_HOST;
        (control.vector, control.shadow) = (theirs.vector & 0xff, theirs.shadow & 1);
        control.inject = theirs.inject & (u64::from(u32::MAX) << 32 | EVENT_VALID | 0xfff);
        save.take_run(&block.save);
        save.take_load(&l1.save);
        self.registers.rax = block.save.rax;
        let is_flush = nested.is_flush(l2.table, theirs.asid) || theirs.tlb_control != 0;
        if is_flush && nested.mistake != Some(Mistake::LostFlush) {
            nested.counts[4] += 1;
            let is_all = theirs.tlb_control != 0;
            self.vcpu.l1_flushes(|table: &NptTable| is_all || *table == l2.table);
        }
        (nested.l2, nested.global) = (Some(l2), true);
        Ok(())
    }

    /// Fails L1's VMRUN.
    fn refuse(&mut self, idle: &mut Idle, at: Gpa) -> Result<(), Error> {
        let Some(nested) = &mut self.nested else { return Ok(()) };
        nested.counts[1] += 1;
        nested.global = false;
        // SAFETY: as for VMLOAD.
        l1_page(&self.guest.vm, idle, at, Access::Write, |page| unsafe {
            let control = &mut block_at(page).control;
            (control.exit_code, control.inject) = (exit::INVALID, 0);
            (control.exit_info_1, control.exit_info_2, control.exit_interrupt) = (0, 0, 0);
        })?;
        Ok(())
    }
}

/// Returns L1's table, in L1's current mode.
fn table_of(root: u64, l1: &Vmcb) -> Option<NptTable> {
    let has = |bit| l1.save.cr4 & bit != 0;
    let levels = match l1.save.efer & EFER_LMA != 0 {
        true if has(CR4_LA57) => 5,
        true => 4,
        false if has(CR4_PAE) => 3,
        false => return None,
    };
    let large_1g = __cpuid(0x8000_0001).edx >> 26 & 1 == 1;
    let mode = NptMode {
        levels,
        nx: l1.save.efer & EFER_NXE != 0,
        smep: has(CR4_SMEP),
        pat: l1.save.pat,
        physical_bits: physical_bits(),
        large_1g,
    };
    NptTable::new(root, mode)
}

/// Checks the parts of L1's block that the processor does not see.
fn is_sane(Vmcb { control, save }: &Vmcb) -> bool {
    control.asid != 0
        && control.intercepts[1] & 1 == 1
        && control.nested & 1 == 1
        && save.efer & EFER_SVME != 0
}
