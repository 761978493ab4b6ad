//! Numbers of /dev/kvm, as in linux/kvm.h.

/// The type of all its ioctls.
pub const KVMIO: u64 = 0xae;

pub const GET_API_VERSION: u32 = 0x00;
pub const CREATE_VM: u32 = 0x01;
pub const CHECK_EXTENSION: u32 = 0x03;
pub const GET_VCPU_MMAP_SIZE: u32 = 0x04;
pub const GET_SUPPORTED_CPUID: u32 = 0x05;

pub const CREATE_VCPU: u32 = 0x41;
pub const GET_DIRTY_LOG: u32 = 0x42;
pub const SET_NR_MMU_PAGES: u32 = 0x44;
pub const SET_USER_MEMORY_REGION: u32 = 0x46;
pub const SET_USER_MEMORY_REGION2: u32 = 0x49;
pub const CREATE_IRQCHIP: u32 = 0x60;
pub const ENABLE_CAP: u32 = 0xa3;
pub const CLEAR_DIRTY_LOG: u32 = 0xc0;
pub const RESET_DIRTY_RINGS: u32 = 0xc7;
/// Of a VM and of a vCPU.
pub const GET_STATS_FD: u32 = 0xce;
pub const SET_MEMORY_ATTRIBUTES: u32 = 0xd2;
pub const CREATE_GUEST_MEMFD: u32 = 0xd4;

pub const RUN: u32 = 0x80;
pub const GET_REGS: u32 = 0x81;
pub const SET_REGS: u32 = 0x82;
pub const GET_SREGS: u32 = 0x83;
pub const SET_SREGS: u32 = 0x84;
pub const SET_SIGNAL_MASK: u32 = 0x8b;
pub const SET_CPUID2: u32 = 0x90;
pub const GET_CPUID2: u32 = 0x91;
pub const GET_MP_STATE: u32 = 0x98;
pub const SET_MP_STATE: u32 = 0x99;
pub const PRE_FAULT_MEMORY: u32 = 0xd5;

/// The whole request `KVM_GET_TSC_KHZ`: its number is that of `KVM_ENABLE_CAP`, and only its size differs.
pub const GET_TSC_KHZ_REQUEST: u64 = KVMIO << 8 | 0xa3;
/// The frequency of the guest's counter. No test of the list reads the counter.
pub const TSC_KHZ: i32 = 1_000_000;

/// `KVM_HC_MAP_GPA_RANGE`, the hypercall that may exit to the VMM.
pub const MAP_GPA_RANGE: u64 = 12;

/// Pages of a vCPU's shared memory: `struct kvm_run`; bytes of ports; coalesced accesses, which this library never has.
pub const RUN_PAGES: usize = 3;
/// The page of that memory at which the dirty ring begins.
pub const RING_PAGE: usize = 64;

pub const EXIT_IO: u32 = 2;
pub const EXIT_HYPERCALL: u32 = 3;
pub const EXIT_MMIO: u32 = 6;
pub const EXIT_INTR: u32 = 10;
pub const EXIT_INTERNAL_ERROR: u32 = 17;
pub const EXIT_DIRTY_RING_FULL: u32 = 31;
pub const EXIT_MEMORY_FAULT: u32 = 39;
