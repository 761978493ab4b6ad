# The number of levels, and long mode itself, can only be changed with paging off, which is 32-bit code's to do. All of
# this lies where virtual and physical addresses are the same and below 4 GiB, stacks too.

.section .text.paging,"ax"
.code64
# paging_set(rdi = CR3, rsi = CR4)
.global paging_set
paging_set:
  push rbx                      # the upper halves of registers do not outlive 32-bit code
  push rbp
  push r12
  push r13
  push r14
  push r15
  push 0x08
  lea rax, [rip + paging_set_32]
  push rax
  .byte 0x48, 0xcb              # far return
.code32
paging_set_32:
  mov eax, cr0
  and eax, 0x7fffffff
  mov cr0, eax
  mov cr3, edi
  mov cr4, esi
  or eax, 0x80000000
  mov cr0, eax
  .byte 0xea                    # far jump to 0x10:paging_set_64
  .long paging_set_64
  .word 0x10
.code64
paging_set_64:
  mov esp, esp
  pop r15
  pop r14
  pop r13
  pop r12
  pop rbp
  pop rbx
  ret

# svm_run_pae(rdi = the block's physical address, rsi = Registers, rdx = CR3 of PAE tables): as svm_run, from a host that
# has left long mode for it. Of the guest's registers, only the lower halves of six.
.global svm_run_pae
svm_run_pae:
  push rbx
  push rbp
  push r12
  push r13
  push r14
  push r15
  mov rax, cr3
  push rax
  push rsi
  push rdi
  push 0x08
  lea rax, [rip + pae_32]
  push rax
  .byte 0x48, 0xcb              # far return
.code32
pae_32:
  mov eax, cr0
  and eax, 0x7fffffff
  mov cr0, eax
  mov cr3, edx
  mov ecx, 0xc0000080           # EFER
  rdmsr
  and eax, 0xfffffeff           # not LME
  wrmsr
  mov eax, cr0
  or eax, 0x80000000
  mov cr0, eax
  mov eax, edi
  .byte 0x0f, 0x01, 0xda        # vmload eax
  mov ebx, [esi + 8]
  mov ecx, [esi + 16]
  mov edx, [esi + 24]
  mov edi, [esi + 40]
  mov ebp, [esi + 48]
  mov esi, [esi + 32]
  .byte 0x0f, 0x01, 0xdd        # clgi
  .byte 0x0f, 0x01, 0xd8        # vmrun eax
  mov eax, [esp]
  .byte 0x0f, 0x01, 0xdb        # vmsave eax
  mov eax, [esp + 8]
  mov [eax + 8], ebx
  mov [eax + 16], ecx
  mov [eax + 24], edx
  mov [eax + 32], esi
  mov [eax + 40], edi
  mov [eax + 48], ebp
  mov eax, cr0
  and eax, 0x7fffffff
  mov cr0, eax
  mov ecx, 0xc0000080
  rdmsr
  or eax, 0x100                 # LME
  wrmsr
  mov eax, [esp + 16]
  mov cr3, eax
  mov eax, cr0
  or eax, 0x80000000
  mov cr0, eax
  .byte 0xea                    # far jump to 0x10:pae_64
  .long pae_64
  .word 0x10
.code64
pae_64:
  mov esp, esp
  add rsp, 24
  pop r15
  pop r14
  pop r13
  pop r12
  pop rbp
  pop rbx
  ret
