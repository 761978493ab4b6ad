//! Privileged instructions, one function each.
//!
//! This code runs alone on its processor in ring 0, so no instruction can fault by lack of privilege. Each function
//! states its other requirements.

use core::arch::asm;

/// Extended features: long mode, NX, SVM.
pub const EFER: u32 = 0xc000_0080;
/// The table of memory types for page-table entries.
pub const PAT: u32 = 0x277;

/// Writes a byte to an I/O port.
///
/// # Safety
/// The device behind the port must not be told to write over memory in use.
pub unsafe fn outb(port: u16, value: u8) {
    // SAFETY: touches no memory by itself; the caller promises that the device overwrites no memory in use.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nostack, preserves_flags)) }
}

/// Writes two bytes to an I/O port.
///
/// # Safety
/// As [`outb`].
pub unsafe fn outw(port: u16, value: u16) {
    // SAFETY: as in `outb`.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nostack, preserves_flags)) }
}

/// Writes four bytes to an I/O port.
///
/// # Safety
/// As [`outb`].
pub unsafe fn outl(port: u16, value: u32) {
    // SAFETY: as in `outb`.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack, preserves_flags)) }
}

/// Reads a byte from an I/O port.
///
/// # Safety
/// As [`outb`]: reading may make a device do something.
pub unsafe fn inb(port: u16) -> u8 {
    let value;
    // SAFETY: as in `outb`.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nostack, preserves_flags)) }
    value
}

/// Reads two bytes from an I/O port.
///
/// # Safety
/// As [`inb`].
pub unsafe fn inw(port: u16) -> u16 {
    let value;
    // SAFETY: as in `inb`.
    unsafe { asm!("in ax, dx", in("dx") port, out("ax") value, options(nostack, preserves_flags)) }
    value
}

/// Reads four bytes from an I/O port.
///
/// # Safety
/// As [`inb`].
pub unsafe fn inl(port: u16) -> u32 {
    let value;
    // SAFETY: as in `inb`.
    unsafe { asm!("in eax, dx", in("dx") port, out("eax") value, options(nostack, preserves_flags)) }
    value
}

/// Fills `into`, an even number of bytes, from an I/O port by reads of two bytes.
///
/// # Safety
/// As [`inb`].
pub unsafe fn insw(port: u16, into: &mut [u8]) {
    // SAFETY: as in `inb`; so many words have room in the slice.
    unsafe {
        asm!("rep insw", in("dx") port, inout("rdi") into.as_mut_ptr() => _, inout("rcx") into.len() / 2 => _,
            options(nostack, preserves_flags));
    }
}

/// Reads a model-specific register.
///
/// # Safety
/// The processor has it; else this is a general protection fault.
pub unsafe fn rdmsr(msr: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller promises that the register exists; reading changes nothing.
    unsafe {
        asm!("rdmsr", in("ecx") msr, out("eax") low, out("edx") high, options(nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Writes a model-specific register.
///
/// # Safety
/// The processor has it and takes the value, and code here goes on being right afterwards.
pub unsafe fn wrmsr(msr: u32, value: u64) {
    let (low, high) = (value as u32, (value >> 32) as u32);
    // SAFETY: the caller promises that the register exists, takes the value, and breaks no code here.
    unsafe { asm!("wrmsr", in("ecx") msr, in("eax") low, in("edx") high, options(nostack, preserves_flags)) }
}

/// Reads the time-stamp counter, in ticks of unknown length.
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 has the counter, and ring 0 may read it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The processor's maker, from CPUID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vendor {
    /// AMD-V: [`svm`](crate::svm).
    Amd,
    /// VMX.
    Intel,
    /// Another maker.
    Other,
}

/// Returns this processor's maker.
pub fn vendor() -> Vendor {
    match core::arch::x86_64::__cpuid(0).ebx {
        0x6874_7541 => Vendor::Amd,   // "Auth"enticAMD
        0x756e_6547 => Vendor::Intel, // "Genu"ineIntel
        _ => Vendor::Other,
    }
}

/// Returns the number of logical processors.
pub fn processors() -> u32 {
    (core::arch::x86_64::__cpuid(1).ebx >> 16 & 0xff).max(1)
}

/// Returns the number of bits of a physical address.
pub fn physical_bits() -> u32 {
    core::arch::x86_64::__cpuid(0x8000_0008).eax & 0xff
}
