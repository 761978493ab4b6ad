# From the loader to Rust: 32-bit entry (PVH, or the ROM below), long mode with all of the first 512 GiB mapped one to one, then
# `rust_entry`. The second processor comes the same way from a page below 1 MiB.

# PVH: a loader that finds this note jumps to the address in it, in 32-bit mode, with ebx = the start information.
.section .note.Xen,"a",@note
.balign 4
.long 4                         # bytes of the name
.long 8                         # bytes of the descriptor
.long 18                        # XEN_ELFNOTE_PHYS32_ENTRY
.asciz "Xen"
.quad pvh_entry

.section .text.first,"ax"
.code32
.global pvh_entry
pvh_entry:
  cli
  cld
  # A loader of a flat image has zeroed nothing.
  mov edi, offset bss_start
  mov ecx, offset bss_end
  sub ecx, edi
  shr ecx, 2
  xor eax, eax
  rep stosd
  # 512 leaves of 1 GiB: present, writable, large.
  mov edi, offset boot_gigabytes
2:
  mov eax, ecx
  shl eax, 30
  or eax, 0x83
  mov [edi + ecx * 8], eax
  mov eax, ecx
  shr eax, 2
  mov [edi + ecx * 8 + 4], eax
  inc ecx
  cmp ecx, 512
  jne 2b
  mov eax, offset boot_gigabytes
  or eax, 3
  mov [boot_root], eax
  mov esp, offset boot_stack_top
  mov esi, offset rust_entry

# ebx = the argument, esi = where to go, esp = the stack
enter_long_mode:
  mov eax, cr4
  or eax, 0x20                  # PAE
  mov cr4, eax
  mov eax, offset boot_root
  mov cr3, eax
  mov ecx, 0xc0000080           # EFER
  rdmsr
  or eax, 0x900                 # LME, NXE
  wrmsr
  mov eax, cr0
  and eax, 0x9ffffffb           # not CD, NW, EM
  or eax, 0x80010003            # PG, WP, MP, PE
  mov cr0, eax
  lgdt [gdt_pointer]
  .byte 0xea                    # far jump to 0x10:long_mode
  .long long_mode
  .word 0x10
.code64
long_mode:
  mov ax, 0x18
  mov ds, ax
  mov es, ax
  mov ss, ax
  xor eax, eax
  mov fs, ax
  mov gs, ax
  mov esp, esp                  # upper halves are undefined after the switch
  mov edi, ebx
  mov esi, esi
  call rsi
  ud2

# The second processor wakes here, in real mode, at 0x8000.
.code16
.global trampoline_start
.global trampoline_end
trampoline_start:
  cli
  cld
  xor ax, ax
  mov ds, ax
  .byte 0x66, 0x0f, 0x01, 0x16  # lgdt with 32 bits of base, from a 16-bit address
  .word 0x8000 + trampoline_gdt - trampoline_start
  mov eax, cr0
  or al, 1
  mov cr0, eax
  .byte 0x66, 0xea              # far jump to 0x08:second_32
  .long second_32
  .word 8
.balign 4
trampoline_gdt:
  .word gdt_end - gdt - 1
  .long gdt
trampoline_end:
.code32
second_32:
  mov ax, 0x18
  mov ds, ax
  mov es, ax
  mov ss, ax
  mov esp, [second_stack]
  mov esi, offset second_entry
  xor ebx, ebx
  jmp enter_long_mode
.code64

# Where there is no firmware: `xtask` makes a ROM of 2 MiB that ends with the 32-bit addresses. It begins with the program's
# flat image, and this section, taken from the ELF file, is its end. The image is copied to its place and entered, with
# ebx = 0, since no loader has told anything.
.section .rom,"",@progbits
.code16
rom_start:
  cli
  .byte 0x2e, 0x66, 0x0f, 0x01, 0x16 # lgdt with 32 bits of base, from a 16-bit address of this segment
  .word 0xff80 + rom_gdt_pointer - rom_start
  mov eax, cr0
  or al, 1
  mov cr0, eax
  .byte 0x66, 0xea              # far jump to 0x08:rom_32
  .long 0xffffff80 + rom_32 - rom_start
  .word 8
.code32
rom_32:
  mov ax, 0x10
  mov ds, ax
  mov es, ax
  mov ss, ax
  mov al, 2
  out 0x92, al                  # address line 20 is open
  cld
  mov esi, 0xffe00000
  mov edi, offset pvh_entry     # the image's first byte
  mov ecx, (0x200000 - 0x80) / 4
  rep movsd
  xor ebx, ebx
  mov eax, offset pvh_entry
  jmp eax
rom_gdt:
  .quad 0
  .quad 0x00cf9b000000ffff      # 0x08: 32-bit code
  .quad 0x00cf93000000ffff      # 0x10: data
rom_gdt_pointer:
  .word rom_gdt_pointer - rom_gdt - 1
  .long 0xffffff80 + rom_gdt - rom_start
# The processor wakes here, 16 bytes before the end.
.org 0x70
.code16
  jmp rom_start
.org 0x80
.code64

.section .data.boot,"aw"
.balign 16
.global gdt
.global gdt_end
gdt:
  .quad 0
  .quad 0x00cf9b000000ffff      # 0x08: 32-bit code
  .quad 0x00af9b000000ffff      # 0x10: 64-bit code
  .quad 0x00cf93000000ffff      # 0x18: data
gdt_end:
gdt_pointer:
  .word gdt_end - gdt - 1
  .quad gdt
# Where the second processor's stack ends; written before it is woken.
.global second_stack
second_stack:
  .quad 0

.section .bss.boot,"aw",@nobits
.balign 4096
boot_root: .skip 4096
boot_gigabytes: .skip 4096
.skip 65536
boot_stack_top:
