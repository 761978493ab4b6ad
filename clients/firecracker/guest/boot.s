# Firecracker enters here as Linux's 64-bit boot protocol says: long mode, the first GiB mapped, boot_params in rsi.
#
# The program runs in ring 3: a KVM without hardware support emulates ring 0, instruction by instruction. Ports stay
# open to it, because its I/O privilege level is 3. There is no interrupt and no handler: an exception is a triple fault,
# at which Firecracker ends.
    .section .text.start, "ax"
    .globl start
start:
    # The same GiB again, for ring 3: present, writable, user.
    lea page_directory(%rip), %rdi
    mov $0x87, %eax # and 2 MiB each
    xor %ecx, %ecx
1:  mov %rax, (%rdi, %rcx, 8)
    add $0x200000, %rax
    inc %ecx
    cmp $512, %ecx
    jne 1b
    lea pointers(%rip), %rax
    or $7, %rdi
    mov %rdi, (%rax)
    # The devices: 2 MiB from 0xd0000000 on.
    lea devices(%rip), %rdi
    mov $0xd0000087, %ecx
    mov %rcx, 128 * 8(%rdi)
    or $7, %rdi
    mov %rdi, 24(%rax)
    lea root(%rip), %rdx
    or $7, %rax
    mov %rax, (%rdx)
    mov %rdx, %cr3

    lgdt descriptors(%rip)
    mov $0x13, %eax
    mov %eax, %ds
    mov %eax, %es
    lea stack(%rip), %rdx
    push %rax # ss
    push %rdx # rsp
    push $0x3002 # rflags: I/O privilege level 3
    push $0x1b # cs
    lea enter(%rip), %rax
    push %rax
    mov %rsi, %rdi
    iretq

    .section .rodata.descriptors, "a"
    .balign 8
table:
    # Segments of ring 3, which are its only use of the table: data at 0x10, code of 64 bits at 0x18.
    .quad 0, 0, 0x00cff3000000ffff, 0x00affb000000ffff
descriptors:
    .word descriptors - table - 1
    .quad table

    .section .bss.tables, "aw", @nobits
    .balign 4096
root: .skip 4096
pointers: .skip 4096
page_directory: .skip 4096
devices: .skip 4096
    .skip 65536
stack:
