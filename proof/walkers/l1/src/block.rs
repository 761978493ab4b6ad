//! The control block: checks of VMRUN, and state of VMLOAD and VMSAVE.

use alloc::format;
use alloc::string::String;
use slat_walker_x86::cpu::rdmsr;
use slat_walker_x86::processor::{Exit, LongMode, Processor as _, Registers};
use slat_walker_x86::svm::Svm;
use slat_walker_x86::vmcb::Vmcb;

/// `VMEXIT_INVALID`, of which QEMU 7.2 writes the lower half.
const INVALID: u64 = 0xffff_ffff;
const KERNEL_GS_BASE: u32 = 0xc000_0102;

/// A change after which VMRUN must refuse a block.
type Spoil = (&'static str, fn(&mut Vmcb));

const SPOILED: [Spoil; 3] = [
    ("ASID 0", |vmcb| vmcb.control.asid = 0),
    ("VMRUN is not intercepted", |vmcb| vmcb.control.intercepts[1] &= !1),
    ("CR0 without CD and with NW", |vmcb| vmcb.save.cr0 = vmcb.save.cr0 & !(1 << 30) | 1 << 29),
];

/// Checks that a guest with this start does not run on any of these blocks. The error names the accepted one.
pub fn check(start: &LongMode) -> Result<(), String> {
    for (what, spoil) in SPOILED {
        // A block of its own, because QEMU writes to a refused block.
        let mut processor = Svm::new(start);
        spoil(processor.vmcb());
        let exit = processor.run(&mut Registers::default());
        if !matches!(exit, Exit::Other { code, .. } if code & INVALID == INVALID) {
            return Err(format!("VMRUN takes a block with {what}: {exit:x?}"));
        }
    }
    Ok(())
}

/// Before a run: sets the value that VMLOAD must load.
pub fn mark(processor: &mut Svm, value: u64) {
    processor.vmcb().save.kernel_gs_base = value;
}

/// After the run: returns whether VMLOAD has loaded the value, and VMSAVE has saved it.
pub fn is_marked(processor: &mut Svm, value: u64) -> bool {
    // SAFETY: every processor with long mode has it.
    let loaded = unsafe { rdmsr(KERNEL_GS_BASE) };
    loaded == value && processor.vmcb().save.kernel_gs_base == value
}
