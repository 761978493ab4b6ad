//! One vCPU: its registers at the start, and the loop that runs it.

use crate::boot::{DESCRIPTORS, PAGE_TABLES, PARAMETERS, SEGMENTS};
use crate::console::Console;
use anyhow::{Result, bail};
use slat::{Gpa, Idle};
use slat_kvm::KvmVm;
use slat_kvm::kvm_bindings::{CpuId, kvm_regs, kvm_segment};
use slat_kvm::kvm_ioctls::{VcpuExit, VcpuFd};

/// A port of the keyboard's controller, and the byte that restarts a PC when it is written there.
const RESTART_PORT: u16 = 0x64;
const RESTART: u8 = 0xfe;

/// Prepares a vCPU. The first one starts at `entry`; the kernel starts the others.
pub fn prepare(vcpu: &VcpuFd, number: u8, cpuid: &CpuId, entry: u64) -> Result<()> {
    let mut cpuid = cpuid.clone();
    for leaf in cpuid.as_mut_slice() {
        match leaf.function {
            1 => leaf.ebx = leaf.ebx & 0x00ff_ffff | u32::from(number) << 24,
            0xb | 0x1f => leaf.edx = number.into(),
            _ => {}
        }
    }
    vcpu.set_cpuid2(&cpuid)?;
    connect(vcpu)?;
    if number == 0 {
        start(vcpu, entry)?;
    }
    Ok(())
}

/// Makes the local APIC pass interrupts of the old controller, as a PC's firmware does.
fn connect(vcpu: &VcpuFd) -> Result<()> {
    const EXTERNAL: u16 = 0x700;
    const NMI: u16 = 0x400;
    let mut apic = vcpu.get_lapic()?;
    for (register, mode) in [(0x350, EXTERNAL), (0x360, NMI)] {
        for (to, byte) in apic.regs[register..].iter_mut().zip(mode.to_le_bytes()) {
            *to = byte as _;
        }
    }
    Ok(vcpu.set_lapic(&apic)?)
}

/// Sets 64-bit mode at `entry`, as the boot protocol requires.
fn start(vcpu: &VcpuFd, entry: u64) -> Result<()> {
    let code = kvm_segment {
        limit: !0,
        selector: 0x10,
        type_: 0xb,
        present: 1,
        s: 1,
        l: 1,
        g: 1,
        ..Default::default()
    };
    let data = kvm_segment { selector: 0x18, type_: 3, db: 1, l: 0, ..code };
    let mut sregs = vcpu.get_sregs()?;
    sregs.cs = code;
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.tr = kvm_segment { limit: 0x67, type_: 0xb, present: 1, ..Default::default() };
    sregs.gdt.base = SEGMENTS;
    sregs.gdt.limit = size_of_val(&DESCRIPTORS) as u16 - 1;
    sregs.cr0 = 0x8000_0011; // PG, ET, PE
    sregs.cr3 = PAGE_TABLES;
    sregs.cr4 = 0x20; // PAE
    sregs.efer = 0x500; // LMA, LME
    vcpu.set_sregs(&sregs)?;
    Ok(vcpu.set_regs(&kvm_regs { rip: entry, rsi: PARAMETERS, rflags: 2, ..Default::default() })?)
}

/// Runs a vCPU until the guest restarts, or fails.
pub fn run(vm: &KvmVm, vcpu: &mut VcpuFd, console: &Console) -> Result<()> {
    let mut idle = Idle::take().expect("a new thread has its token");
    let idle = &mut idle;
    let is_memory = |idle: &mut Idle, gpa| vm.memory().find(idle, Gpa(gpa).gfn()).is_some();
    loop {
        match vcpu.run() {
            Ok(VcpuExit::IoOut(RESTART_PORT, [RESTART])) => return Ok(()),
            Ok(VcpuExit::IoOut(port, [byte])) => console.write(port, *byte)?,
            // The keyboard's controller returns zeros.
            Ok(VcpuExit::IoIn(RESTART_PORT, data)) => data.fill(0),
            Ok(VcpuExit::IoIn(port, data)) => data.fill(console.read(port).unwrap_or(!0)),
            // Memory: KVM emulates an instruction on a page that was missing.
            Ok(VcpuExit::MmioRead(gpa, data)) if is_memory(idle, gpa) => vm.read(idle, Gpa(gpa), data)?,
            Ok(VcpuExit::MmioRead(_, data)) => data.fill(!0),
            Ok(VcpuExit::MmioWrite(gpa, data)) if is_memory(idle, gpa) => vm.write(idle, Gpa(gpa), data)?,
            Ok(VcpuExit::IoOut(..) | VcpuExit::MmioWrite(..)) => {}
            Ok(exit) => bail!("the guest has failed: {exit:?}"),
            Err(error) if KvmVm::is_transient(&error) => vm.take_error().map_or(Ok(()), Err)?,
            Err(error) => bail!("this KVM cannot run the guest: {error}"),
        }
    }
}
