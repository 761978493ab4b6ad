//! Answers CPUID for a guest with two vCPUs. The answers are the processor's, with these changes: there is a
//! hypervisor, which offers [clocks](crate::clock); SVM is reduced or absent; and vCPUs that share a processor have
//! their own numbers.

use crate::platform::CPUS;
use core::arch::x86_64::__cpuid_count;
use slat::VcpuId;
use slat_walker_x86::processor::Registers;

/// The signature "KVMKVMKVM", and the last hypervisor leaf.
const SIGNATURE: [u32; 4] = [FEATURES_LEAF, 0x4b4d_564b, 0x564b_4d56, 0x4d];
const SIGNATURE_LEAF: u32 = 0x4000_0000;
const FEATURES_LEAF: u32 = 0x4000_0001;
/// Clocks by two MSRs; the clocks of all vCPUs agree, as their processors' ticks do.
const FEATURES: u32 = 1 << 3 | 1 << 24;

const HYPERVISOR: u32 = 1 << 31;
/// Hidden: Linux under a hypervisor would use x2APIC, and start processors by an MSR that is not intercepted here.
const X2APIC: u32 = 1 << 21;
const DEADLINE: u32 = 1 << 24;
const XSAVE_ON: u32 = 1 << 27;
const KEYS_ON: u32 = 1 << 4;
const TOGETHER: u32 = 1 << 28;
/// Hidden: Linux would prefer the processor's own ticks as a clock.
const INVARIANT_TICKS: u32 = 1 << 8;

/// SVM features that the guest gets: see `nested`.
const SVM: u32 = 1 << 2;
const SVM_LEAF: u32 = 0x8000_000a;
const ASIDS: u32 = 16;
const NESTED_PAGING: u32 = 1 << 0;

/// Answers CPUID for a vCPU with this CR4. `shares` is its number if it shares its processor.
pub fn answer(registers: &mut Registers, cr4: u64, shares: Option<VcpuId>, has_svm: bool) {
    let leaf = registers.rax as u32;
    let mut found = __cpuid_count(leaf, registers.rcx as u32);
    // A flag that reflects a CR4 bit has the hypervisor's value here.
    let on = |cr4_bit: u32, flag: u32| if cr4 >> cr4_bit & 1 == 1 { flag } else { 0 };
    match leaf {
        1 => found.ecx = found.ecx & !(X2APIC | XSAVE_ON) | on(18, XSAVE_ON) | HYPERVISOR,
        7 => found.ecx = found.ecx & !KEYS_ON | on(22, KEYS_ON),
        0x8000_0007 => found.edx &= !INVARIANT_TICKS,
        0x8000_0001 if !has_svm => found.ecx &= !SVM,
        SVM_LEAF if has_svm => [found.ebx, found.ecx, found.edx] = [ASIDS, 0, NESTED_PAGING],
        SIGNATURE_LEAF => [found.eax, found.ebx, found.ecx, found.edx] = SIGNATURE,
        FEATURES_LEAF => [found.eax, found.ebx, found.ecx, found.edx] = [FEATURES, 0, 0, 0],
        _ => {}
    }
    if let Some(VcpuId(id)) = shares {
        match leaf {
            1 => {
                found.ebx = found.ebx & 0xffff | CPUS << 16 | id << 24;
                found.ecx &= !DEADLINE;
                found.edx |= TOGETHER;
            }
            0xb => found.edx = id,
            0x8000_001e => found.eax = id,
            _ => {}
        }
    }
    let [eax, ebx, ecx, edx] = [found.eax, found.ebx, found.ecx, found.edx].map(u64::from);
    (registers.rax, registers.rbx, registers.rcx, registers.rdx) = (eax, ebx, ecx, edx);
}
