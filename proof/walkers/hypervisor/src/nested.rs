//! SVM for the guest L1. Its own guest, L2, runs on a second control block of ours.
//!
//! ```text
//! L1: VMRUN ─▶ its block is copied once, checked ─▶ ours: L1's state and wishes, our intercepts, the shadow's root, an ASID of ours
//! L2: out   ─▶ memory: L2::fault ─▶ in again, or #VMEXIT(NPF)      an interrupt of the machine: ours, then L1's, if it takes it
//!              an instruction of SVM's, an MSR: L1's, if it asked; else an exception, or ours
//!              all else: L1's
//! #VMEXIT   ─▶ L2's state and why into L1's block; L1 goes on behind its VMRUN, its global interrupt flag clear
//! ```
//! L1 gets nested paging, sixteen ASIDs and nothing else (`identify`). **Its control block is not trusted**: bits that
//! L1 must not choose are masked, and the processor checks the rest of our block at VMRUN. Its maps of MSRs are copied
//! at each VMRUN.
//!
//! L1's flushes: a `TLB_CONTROL` other than 0 flushes everything of this vCPU; another ASID than the last one for the
//! same table flushes that table. INVLPGA takes L2's linear addresses: our block forgets all of them.
//!
//! Not supported: guests without nested paging (VMRUN refuses the block), a guest of L2's, virtual NMIs, single steps
//! through VMRUN.

use crate::Error;
use crate::guest_loop::Cpu;
use crate::options::Mistake;
use crate::primary_mmu::Machine;
use alloc::boxed::Box;
use alloc::format;
use core::arch::x86_64::__cpuid;
use slat::nested::{NptMode, NptTable};
use slat::{Access, Format, Gpa, HoldError, Hva, Idle, PAGE_SIZE, VcpuId, Vm};
use slat_walker_x86::cpu::{EFER, physical_bits};
use slat_walker_x86::println;
use slat_walker_x86::processor::{Processor, Registers, WRMSR_BYTES};
use slat_walker_x86::svm::{EFER_SVME, HOST_SAVE, Svm};
use slat_walker_x86::vmcb::{
    CHOSEN_INTERRUPTS, Control, EVENT_EXCEPTION, EVENT_HAS_CODE, EVENT_VALID, INTERCEPT_INTERRUPT,
    INTERCEPT_INVLPGA, INTERCEPT_MSRS, INTERCEPT_SHUTDOWN, INTERCEPT_SVM, INTERRUPTS_BY_HOST, Vmcb, exit,
};

/// Vectors of exceptions.
pub const UNDEFINED: u64 = 6;
pub const PROTECTION: u64 = 13;
/// Bytes of each instruction of SVM's.
const SVM_BYTES: u64 = 3;
const CR4_PAE: u64 = 1 << 5;
const CR4_LA57: u64 = 1 << 12;
const CR4_SMEP: u64 = 1 << 20;
const EFER_LMA: u64 = 1 << 10;
const EFER_NXE: u64 = 1 << 11;
const WHOLE_PAGE: u64 = PAGE_SIZE - 1;

/// The SVM state of one vCPU of L1.
pub struct Nested {
    pub ours: Svm,
    /// L1's EFER.SVME, its save-area MSR, and its global interrupt flag.
    enabled: bool,
    save_area: u64,
    pub global: bool,
    /// The running L2.
    pub l2: Option<L2>,
    /// An interrupt waits for L1.
    pub waiting: bool,
    /// The last ASID for each of some tables.
    asids: [Option<(NptTable, u32)>; 4],
    pub mistake: Option<Mistake>,
    /// Number of VMRUNs, of refused blocks, of faults of L2, of those for L1, and of flushes.
    pub counts: [u64; 5],
}

/// A running L2.
pub struct L2 {
    /// Address of L1's control block.
    pub at: Gpa,
    pub table: NptTable,
    /// L1's intercepts.
    pub intercepts: [u32; 3],
    pub maps: (Gpa, Gpa),
    pub interrupt: u32,
    /// L1's RAX.
    pub rax: u64,
}

impl Nested {
    /// Makes the state of this vCPU.
    pub fn new(vcpu: VcpuId, mistake: Option<Mistake>) -> Self {
        Self {
            // 0 is the hypervisor's; then come L1's vCPUs.
            ours: Svm::for_l2(vcpu.0 + 3),
            enabled: false,
            save_area: 0,
            global: true,
            l2: None,
            waiting: false,
            asids: [None; 4],
            mistake,
            counts: [0; 5],
        }
    }

    /// Notes whether an interrupt waits for L1. Returns whether L1 can take it.
    pub fn interrupt(&mut self, waits: bool) -> bool {
        self.waiting = waits;
        self.global && self.l2.is_none()
    }

    pub fn is_in_l2(&self) -> bool {
        self.l2.is_some()
    }

    pub fn report(&self) {
        let [runs, refused, faults, l1s, flushes] = self.counts;
        println!("report: {runs} VMRUNs by L1");
        println!("report: {refused} of them refused");
        println!("report: {faults} faults of L2");
        println!("report: {l1s} of them for L1");
        println!("report: {flushes} flushes by L1");
    }

    /// Returns whether a VMRUN with this table and ASID flushes the table.
    fn is_flush(&mut self, table: NptTable, asid: u32) -> bool {
        let same = |entry: &Option<(NptTable, u32)>| entry.is_some_and(|(known, _)| known == table);
        let at = self.asids.iter().position(same);
        let is_known = at.is_some_and(|at| self.asids[at] == Some((table, asid)));
        self.asids[..=at.unwrap_or(3)].rotate_right(1);
        self.asids[0] = Some((table, asid));
        !is_known
    }
}

/// Injects the exception of this vector at the next entry; `has_code` adds an error code of 0.
pub fn raise(control: &mut Control, vector: u64, has_code: bool) {
    control.inject = EVENT_VALID | EVENT_EXCEPTION | vector | if has_code { EVENT_HAS_CODE } else { 0 };
}

/// Calls `look` with a page of L1's memory at an address. `None` without memory. Brings back a taken page at once.
pub fn l1_page<F: Format, T>(
    vm: &Vm<F, Machine>,
    idle: &mut Idle,
    at: Gpa,
    access: Access,
    look: impl FnOnce(u64) -> T,
) -> Result<Option<T>, Error> {
    loop {
        match vm.memory().hold(idle, at.gfn(), access) {
            Ok(mut held) => {
                let page = if access == Access::Write { held.write(idle) } else { held.read(idle) };
                if let Some(page) = page {
                    let seen = look(page.pfn().address() + at.offset());
                    if access == Access::Write {
                        vm.host().note_own_store(at.gfn());
                    }
                    return Ok(Some(seen));
                }
            }
            Err(HoldError::Pending(_)) => {
                let host = vm.host();
                let brought = host.bring(&mut host.frames.lock(), Hva(at.gfn().gpa().0));
                brought.map_err(|error| format!("a page of L1's cannot come back: {at:x?}: {error}"))?;
            }
            Err(HoldError::NoMemslot | HoldError::ReadOnly) => return Ok(None),
            Err(error) => return Err(format!("L1's memory cannot be had: {at:x?}: {error}").into()),
        }
    }
}

/// Returns a control block of L1's.
///
/// # Safety
/// A page of RAM is there, mapped one to one, and in use as long as this is; L1 is out, and nothing else here has it. Integers only.
pub unsafe fn block_at<'a>(page: u64) -> &'a mut Vmcb {
    // SAFETY: the caller promises a page of RAM there, mapped one to one, that nothing else uses meanwhile.
    unsafe { &mut *(page as *mut Vmcb) }
}

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

/// Sets the result of RDMSR.
pub fn answer(registers: &mut Registers, value: u64) {
    (registers.rax, registers.rdx) = (value & 0xffff_ffff, value >> 32);
}
