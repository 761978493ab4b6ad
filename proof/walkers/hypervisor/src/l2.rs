//! Entries and exits of L2, the guest's guest. The hypervisor or L1 handles an exit. [`nested`](crate::nested) begins
//! L2.

use crate::apic;
use crate::error::Error;
use crate::guest_loop::{After, Cached, Cpu};
use crate::nested::{L2, PROTECTION, UNDEFINED, answer, block_at, l1_page, raise};
use crate::options::Mistake;
use alloc::format;
use slat::entry::Go;
use slat::nested::{L1Access, L1Format as _, L2Next};
use slat::{Access, CpuId, Emulate, Format, Gpa, Idle, Leave, Next};
use slat_walker_x86::cpu::EFER;
use slat_walker_x86::processor::{Exit, Processor, WRMSR_BYTES};
use slat_walker_x86::svm::{Svm, cut_short, msr_bits};
use slat_walker_x86::vmcb::{
    CHOSEN_INTERRUPTS, INTERCEPT_INTERRUPT, INTERCEPT_INVLPGA, INTERCEPT_MSRS, INTERCEPT_SHUTDOWN,
    INTERRUPTS_BY_HOST, Vmcb, exit,
};

/// RFLAGS.IF.
const INTERRUPTS_ON: u64 = 1 << 9;
/// Bits of EFER that a write by L2 does not change: LMA, which is the processor's; and SVME, without which VMRUN fails.
const EFER_KEPT: u64 = 1 << 10 | 1 << 12;
/// Bits of EFER that no processor has.
const EFER_RESERVED: u64 = 0xfe | 1 << 9 | 1 << 16 | 1 << 19 | !0 << 22;

/// DR7 after an exit: no breakpoints.
const DR7_OFF: u64 = 0x400;

impl<P: Processor, F: Format> Cpu<'_, P, F> {
    /// Enters L2 and returns its exit.
    pub fn run_l2(&mut self, idle: &mut Idle, number: CpuId) -> Result<Exit, Error> {
        let (Some(nested), Some(first)) = (&mut self.nested, Svm::of(&mut self.processor)) else {
            return Ok(Exit::Kick);
        };
        let Some(l2) = &nested.l2 else { return Ok(Exit::Kick) };
        let flags = if l2.interrupt & INTERRUPTS_BY_HOST != 0 { first } else { &mut nested.ours };
        let takes = flags.vmcb().save.rflags & INTERRUPTS_ON != 0;
        if nested.waiting && takes && l2.intercepts[0] & INTERCEPT_INTERRUPT != 0 {
            self.leave(idle, (exit::INTERRUPT, 0, 0))?;
            return Ok(Exit::Kick);
        }
        let mut guest = self.vcpu.nested(idle, l2.table)?;
        loop {
            let ready = guest.enter(idle, &mut Cached(&mut nested.ours, number));
            nested.ours.set_root::<F>(ready.root());
            let Go::In(inside, ()) = ready.go(|| ()) else { continue };
            nested.ours.exchange(&mut self.registers);
            drop(inside);
            let is_tick = nested.ours.vmcb().control.exit_code == exit::INTERRUPT;
            return Ok(if is_tick { Exit::Interrupt } else { Exit::Nested });
        }
    }

    /// Handles an exit of L2.
    pub fn l2_exit(&mut self, idle: &mut Idle) -> Result<After, Error> {
        let Some(nested) = &mut self.nested else { return Ok(After::Again) };
        let Some(l2) = &nested.l2 else { return Ok(After::Again) };
        let Vmcb { control, save } = nested.ours.vmcb();
        let (code, info, more) = (control.exit_code, control.exit_info_1, control.exit_info_2);
        let is_asked = |word: usize, bits: u32| l2.intercepts[word] & bits != 0;
        let is_l1s = match code {
            exit::NESTED_FAULT => return self.l2_fault(idle, info, Gpa(more)),
            exit::SHUTDOWN if !is_asked(0, INTERCEPT_SHUTDOWN) => {
                return Err(
                    format!("a triple fault of L2's at {:#x}, for which L1 did not ask", save.rip).into()
                );
            }
            exit::INVLPGA => is_asked(0, INTERCEPT_INVLPGA),
            exit::VMRUN..=exit::SKINIT => is_asked(1, 1 << (code - exit::VMRUN)),
            exit::MSR if is_asked(0, INTERCEPT_MSRS) => {
                let (byte, bits) = msr_bits(self.registers.rcx as u32).unwrap_or((0, 0));
                let (map, wanted) = (l2.maps.0 + byte as u64, bits & if info & 1 == 1 { 0xaa } else { 0x55 });
                // SAFETY: as for VMLOAD.
                let there =
                    l1_page(&self.guest.vm, idle, map, Access::Read, |at| unsafe { *(at as *const u8) })?;
                bits == 0 || there.is_none_or(|byte| byte & wanted != 0)
            }
            exit::MSR => false,
            exit::PORT => {
                let map = l2.maps.1 + (info >> 16) / 8;
                // SAFETY: as for VMLOAD.
                let there =
                    l1_page(&self.guest.vm, idle, map, Access::Read, |at| unsafe { *(at as *const u8) })?;
                if there.is_some_and(|byte| byte >> (info >> 16 & 7) & 1 == 0) {
                    let port = info >> 16;
                    return Err(format!(
                        "not supported: L2 uses port {port:#x}, which L1 does not intercept"
                    )
                    .into());
                }
                true
            }
            _ => true,
        };
        if is_l1s {
            self.leave(idle, (code, info, more))?;
        } else if code == exit::MSR {
            // An MSR that L1 lets L2 have: EFER is L2's own. All others read as zero and ignore stores.
            let value = self.registers.rdx << 32 | self.registers.rax & 0xffff_ffff;
            match (info & 1 == 1, self.registers.rcx as u32) {
                (false, EFER) => answer(&mut self.registers, save.efer),
                (false, _) => answer(&mut self.registers, 0),
                (true, EFER) if value & EFER_RESERVED != 0 => {
                    raise(control, PROTECTION, true);
                    return Ok(After::Again);
                }
                (true, EFER) => save.efer = value & !EFER_KEPT | save.efer & EFER_KEPT,
                (true, _) => {}
            }
            save.rip += WRMSR_BYTES;
        } else {
            raise(control, UNDEFINED, false);
        }
        Ok(After::Again)
    }

    /// Handles a memory fault of L2, of the shadow or of L1's tables.
    fn l2_fault(&mut self, idle: &mut Idle, info: u64, gpa: Gpa) -> Result<After, Error> {
        let Some(nested) = &mut self.nested else { return Ok(After::Again) };
        let Some(L2 { table, .. }) = nested.l2 else { return Ok(After::Again) };
        nested.counts[2] += 1;
        let bit = |bit: u32| info >> bit & 1 == 1;
        let kind = match () {
            () if bit(4) => Access::Fetch,
            () if bit(1) => Access::Write,
            () => Access::Read,
        };
        let is_walk = bit(33) && nested.mistake != Some(Mistake::LostWalk);
        let walk = is_walk.then_some(Access::Read);
        let access = L1Access {
            walk_for: walk,
            ..L1Access::new(gpa, if walk.is_some() { Access::Write } else { kind })
        };
        let mut guest = self.vcpu.nested(idle, table)?;
        match guest.fault(idle, access)? {
            L2Next::Handled { next: Next::Leave(Leave::Pending(token)), .. } => Ok(After::Wait(token)),
            L2Next::Handled { next: Next::Emulate(Emulate::NoMemory), gpa: at } if at.gfn() == apic::PAGE => {
                Ok(After::Controller(at))
            }
            L2Next::Handled { next: Next::Emulate(Emulate::NoMemory | Emulate::ReadOnly), gpa: at } => {
                Err(format!("not supported: L1 maps {at:x?} for L2, which is no memory of L1's: {access:x?}")
                    .into())
            }
            L2Next::ForL1(fault) => {
                nested.counts[3] += 1;
                let told = table.injection(&fault);
                self.leave(idle, (exit::NESTED_FAULT, told.info1, told.info2.0))?;
                Ok(After::Again)
            }
            _ => Ok(After::Again),
        }
    }

    /// Does a #VMEXIT to L1.
    fn leave(&mut self, idle: &mut Idle, (code, info_1, info_2): (u64, u64, u64)) -> Result<(), Error> {
        let (Some(nested), Some(first)) = (&mut self.nested, Svm::of(&mut self.processor)) else {
            return Ok(());
        };
        let Some(l2) = nested.l2.take() else { return Ok(()) };
        let Vmcb { control, save } = nested.ours.vmcb();
        save.rax = self.registers.rax;
        l1_page(&self.guest.vm, idle, l2.at, Access::Write, |page| {
            // SAFETY: as for VMLOAD.
            let block = unsafe { block_at(page) };
            block.save.take_run(save);
            let theirs = &mut block.control;
            (theirs.exit_code, theirs.exit_info_1, theirs.exit_info_2) = (code, info_1, info_2);
            theirs.exit_interrupt =
                if code == exit::INTERRUPT { 0 } else { cut_short(control.exit_interrupt) };
            theirs.interrupt = theirs.interrupt & !CHOSEN_INTERRUPTS | control.interrupt & CHOSEN_INTERRUPTS;
            (theirs.shadow, theirs.next_rip, theirs.inject) = (control.shadow, control.next_rip, 0);
        })?;
        control.inject = 0;
        let l1 = &mut first.vmcb().save;
        l1.take_load(save);
        l1.dr7 = DR7_OFF;
        (self.registers.rax, nested.global) = (l2.rax, false);
        Ok(())
    }
}
