//! Entry into the guest and exit from it: exchanges the general registers, which VMX leaves to software.
//!
//! The floating-point and vector registers are the guest's all the time: this program is compiled without them.

use crate::processor::Registers;
use core::arch::naked_asm;
use core::mem::offset_of;
use x86::vmx::vmcs::host;

/// Enters the guest of the current VMCS with these registers, and returns the guest's registers after the exit. True
/// where the processor refused the entry; then the registers are unchanged.
///
/// # Safety
/// A complete VMCS is current on this CPU. `launched`: whether this VMCS has been entered before.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn switch(registers: *mut Registers, launched: bool) -> bool {
    naked_asm!(
        "push rbx", "push rbp", "push r12", "push r13", "push r14", "push r15", "push rdi",
        "mov eax, {HOST_RSP}", "vmwrite rax, rsp",
        "mov eax, {HOST_RIP}", "lea rdx, [rip + 4f]", "vmwrite rax, rdx",
        "test sil, sil", // the moves leave the flag alone
        "mov rax, [rdi + {RAX}]", "mov rbx, [rdi + {RBX}]", "mov rcx, [rdi + {RCX}]", "mov rdx, [rdi + {RDX}]",
        "mov rsi, [rdi + {RSI}]", "mov rbp, [rdi + {RBP}]",
        "mov r8, [rdi + {R8}]", "mov r9, [rdi + {R9}]", "mov r10, [rdi + {R10}]", "mov r11, [rdi + {R11}]",
        "mov r12, [rdi + {R12}]", "mov r13, [rdi + {R13}]", "mov r14, [rdi + {R14}]", "mov r15, [rdi + {R15}]",
        "mov rdi, [rdi + {RDI}]",
        "jnz 2f",
        "vmlaunch",
        "jmp 3f",
        "2: vmresume",
        // The processor refused the entry.
        "3: pop rdi",
        "mov eax, 1",
        "jmp 5f",
        // The host continues here after an exit; RSP is as above, and all other registers are the guest's.
        "4: xchg rdi, [rsp]",
        "pop qword ptr [rdi + {RDI}]",
        "mov [rdi + {RAX}], rax", "mov [rdi + {RBX}], rbx", "mov [rdi + {RCX}], rcx", "mov [rdi + {RDX}], rdx",
        "mov [rdi + {RSI}], rsi", "mov [rdi + {RBP}], rbp",
        "mov [rdi + {R8}], r8", "mov [rdi + {R9}], r9", "mov [rdi + {R10}], r10", "mov [rdi + {R11}], r11",
        "mov [rdi + {R12}], r12", "mov [rdi + {R13}], r13", "mov [rdi + {R14}], r14", "mov [rdi + {R15}], r15",
        "xor eax, eax",
        "5: pop r15", "pop r14", "pop r13", "pop r12", "pop rbp", "pop rbx",
        "ret",
        HOST_RSP = const host::RSP, HOST_RIP = const host::RIP,
        RAX = const offset_of!(Registers, rax), RBX = const offset_of!(Registers, rbx),
        RCX = const offset_of!(Registers, rcx), RDX = const offset_of!(Registers, rdx),
        RSI = const offset_of!(Registers, rsi), RDI = const offset_of!(Registers, rdi),
        RBP = const offset_of!(Registers, rbp), R8 = const offset_of!(Registers, r8),
        R9 = const offset_of!(Registers, r9), R10 = const offset_of!(Registers, r10),
        R11 = const offset_of!(Registers, r11), R12 = const offset_of!(Registers, r12),
        R13 = const offset_of!(Registers, r13), R14 = const offset_of!(Registers, r14),
        R15 = const offset_of!(Registers, r15),
    )
}
