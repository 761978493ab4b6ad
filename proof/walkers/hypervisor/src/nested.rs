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

use crate::error::Error;
use crate::options::Mistake;
use crate::primary_mmu::Machine;
use alloc::format;
use slat::nested::NptTable;
use slat::{Access, Format, Gpa, HoldError, Hva, Idle, VcpuId, Vm};
use slat_walker_x86::println;
use slat_walker_x86::processor::Registers;
use slat_walker_x86::svm::Svm;
use slat_walker_x86::vmcb::{Control, EVENT_EXCEPTION, EVENT_HAS_CODE, EVENT_VALID, Vmcb};

/// Vectors of exceptions.
pub const UNDEFINED: u64 = 6;
pub const PROTECTION: u64 = 13;

/// The SVM state of one vCPU of L1.
pub struct Nested {
    pub ours: Svm,
    /// L1's EFER.SVME, its save-area MSR, and its global interrupt flag.
    pub enabled: bool,
    pub save_area: u64,
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
    pub fn is_flush(&mut self, table: NptTable, asid: u32) -> bool {
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

/// Sets the result of RDMSR.
pub fn answer(registers: &mut Registers, value: u64) {
    (registers.rax, registers.rdx) = (value & 0xffff_ffff, value >> 32);
}
