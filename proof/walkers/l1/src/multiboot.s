# Multiboot, version 1: a loader that finds this header in the file's first 8 KiB puts the file where it says, and jumps to its last
# word in 32-bit mode, with eax = the magic number below and ebx = a table of what the loader tells. Other loaders come to `pvh_entry`.
.section .text.multiboot,"ax"
.balign 4
multiboot_header:
  .long 0x1badb002
  .long 0x00010000              # the addresses below are to be used, whatever the file's format
  .long 0 - 0x1badb002 - 0x00010000
  .long multiboot_header
  .long image_start
  .long data_end
  .long image_end               # the heap is not for what the loader brings
  .long multiboot_entry
.code32
multiboot_entry:
  mov [multiboot_table], ebx
  jmp pvh_entry
.code64

.section .data.multiboot,"aw"
.global multiboot_table
.balign 8
multiboot_table:
  .quad 0
