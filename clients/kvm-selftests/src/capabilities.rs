//! Answers that are the same for every VM: capabilities, CPUID, and the module parameters that tests read.

use crate::abi;
use kvm_bindings::{
    KVM_CAP_BINARY_STATS_FD, KVM_CAP_DIRTY_LOG_RING, KVM_CAP_DIRTY_LOG_RING_ACQ_REL, KVM_CAP_DISABLE_QUIRKS2,
    KVM_CAP_EXIT_HYPERCALL, KVM_CAP_GET_TSC_KHZ, KVM_CAP_GUEST_MEMFD, KVM_CAP_IMMEDIATE_EXIT,
    KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, KVM_CAP_MAX_VCPUS, KVM_CAP_MEMORY_ATTRIBUTES,
    KVM_CAP_MEMORY_FAULT_INFO, KVM_CAP_NR_MEMSLOTS, KVM_CAP_NR_VCPUS, KVM_CAP_PRE_FAULT_MEMORY,
    KVM_CAP_READONLY_MEM, KVM_CAP_SYNC_MMU, KVM_CAP_USER_MEMORY, KVM_CAP_USER_MEMORY2,
    KVM_CAP_VM_DISABLE_NX_HUGE_PAGES, KVM_CAP_VM_TYPES, KVM_DIRTY_LOG_INITIALLY_SET,
    KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE, KVM_MEMORY_ATTRIBUTE_PRIVATE, KVM_X86_QUIRK_SLOT_ZAP_ALL,
    kvm_cpuid_entry2, kvm_cpuid2,
};
use slat::RingSize;
use std::ffi::{c_int, c_void};
use std::sync::LazyLock;
use std::time::Duration;

pub const VCPUS: u32 = 16;
pub const SLOTS: u32 = 32_764;

/// An ioctl of /dev/kvm itself.
///
/// # Safety
/// `argument` is valid for the ioctl of this number.
pub unsafe fn ioctl(number: u32, argument: *mut c_void) -> Result<c_int, c_int> {
    match number {
        abi::GET_API_VERSION => Ok(12),
        abi::CHECK_EXTENSION => Ok(capability(argument as u32, true)),
        abi::GET_VCPU_MMAP_SIZE => Ok((abi::RUN_PAGES as u64 * slat::PAGE_SIZE) as c_int),
        abi::GET_SUPPORTED_CPUID => {
            let entry = |function, eax| kvm_cpuid_entry2 { function, eax, ..Default::default() };
            // 48 bits of physical and of virtual address: the tests ask for nothing else, and the guests never use
            // CPUID.
            let entries = [entry(0, 0), entry(0x8000_0000, 0x8000_0008), entry(0x8000_0008, 0x3030)];
            // SAFETY: required of the caller (see `# Safety`).
            unsafe { give_cpuid(&entries, argument.cast()) }?;
            Ok(0)
        }
        _ => Err(libc::EINVAL),
    }
}

/// `KVM_CHECK_EXTENSION`, of a VM that can have private memory, or not; /dev/kvm answers for those that can.
pub fn capability(number: u32, private: bool) -> c_int {
    match number {
        KVM_CAP_NR_MEMSLOTS => SLOTS as c_int,
        KVM_CAP_MAX_VCPUS | KVM_CAP_NR_VCPUS => VCPUS as c_int,
        KVM_CAP_IMMEDIATE_EXIT
        | KVM_CAP_USER_MEMORY
        | KVM_CAP_USER_MEMORY2
        | KVM_CAP_SYNC_MMU
        | KVM_CAP_READONLY_MEM
        | KVM_CAP_GET_TSC_KHZ
        | KVM_CAP_BINARY_STATS_FD
        | KVM_CAP_MEMORY_FAULT_INFO
        | KVM_CAP_VM_DISABLE_NX_HUGE_PAGES
        | KVM_CAP_PRE_FAULT_MEMORY => 1,
        KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2 => manual_options() as c_int,
        KVM_CAP_DIRTY_LOG_RING | KVM_CAP_DIRTY_LOG_RING_ACQ_REL => {
            (RingSize::MAX_ENTRIES * RingSize::ENTRY) as c_int
        }
        KVM_CAP_DISABLE_QUIRKS2 => KVM_X86_QUIRK_SLOT_ZAP_ALL as c_int,
        KVM_CAP_EXIT_HYPERCALL => 1 << abi::MAP_GPA_RANGE,
        // KVM_X86_DEFAULT_VM, KVM_X86_SW_PROTECTED_VM.
        KVM_CAP_VM_TYPES => 0b11,
        KVM_CAP_MEMORY_ATTRIBUTES if private => KVM_MEMORY_ATTRIBUTE_PRIVATE as c_int,
        KVM_CAP_GUEST_MEMFD => c_int::from(private),
        _ => 0,
    }
}

pub fn manual_options() -> u32 {
    KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE | KVM_DIRTY_LOG_INITIALLY_SET
}

/// The period after which KVM takes back what fetches have split, if large pages do not execute: `SLAT_NX_HUGE_PAGES`, in
/// milliseconds, in place of the module parameters.
pub static NX_PERIOD: LazyLock<Option<Duration>> = LazyLock::new(|| {
    let period = std::env::var("SLAT_NX_HUGE_PAGES").ok()?;
    Some(Duration::from_millis(period.parse().expect("SLAT_NX_HUGE_PAGES is a number of milliseconds")))
});

/// The contents of the file of a module parameter, if `path` is one. The engine has one kind of table and always splits
/// the large pages that a log covers, which is `Y` in KVM's terms.
pub fn module_parameter(path: &[u8]) -> Option<&'static [u8]> {
    let name = path.strip_prefix(b"/sys/module/kvm")?;
    match name {
        b"/parameters/tdp_mmu"
        | b"/parameters/eager_page_split"
        | b"_intel/parameters/ept"
        | b"_amd/parameters/npt" => Some(b"Y\n"),
        b"/parameters/force_emulation_prefix" => Some(b"0\n"),
        _ => None,
    }
}

/// # Safety
/// `into` says how many entries it has room for.
pub unsafe fn give_cpuid(entries: &[kvm_cpuid_entry2], into: *mut kvm_cpuid2) -> Result<(), c_int> {
    // SAFETY: required of the caller (see `# Safety`).
    unsafe {
        let room = std::mem::replace(&mut (*into).nent, entries.len() as u32);
        if (room as usize) < entries.len() {
            return Err(libc::E2BIG);
        }
        let first = (&raw mut (*into).entries).cast::<kvm_cpuid_entry2>();
        first.copy_from_nonoverlapping(entries.as_ptr(), entries.len());
    }
    Ok(())
}
