# svm_run(rdi = the block's physical address, rsi = Registers): everything but rax, which VMRUN exchanges itself.
.section .text.svm,"ax"
.code64
.global svm_run
svm_run:
  push rbx
  push rbp
  push r12
  push r13
  push r14
  push r15
  push rsi
  push rdi
  mov rax, rdi
  vmload rax
  mov rbx, [rsi + 8]
  mov rcx, [rsi + 16]
  mov rdx, [rsi + 24]
  mov rdi, [rsi + 40]
  mov rbp, [rsi + 48]
  mov r8, [rsi + 56]
  mov r9, [rsi + 64]
  mov r10, [rsi + 72]
  mov r11, [rsi + 80]
  mov r12, [rsi + 88]
  mov r13, [rsi + 96]
  mov r14, [rsi + 104]
  mov r15, [rsi + 112]
  mov rsi, [rsi + 32]
  clgi                          # an interrupt that ends the guest waits until the next one takes it
  sti                           # heeded where guests share the processor: an interrupt ends the guest
  nop
  vmrun rax
  cli
  mov rax, [rsp]
  vmsave rax
  mov rax, [rsp + 8]
  mov [rax + 8], rbx
  mov [rax + 16], rcx
  mov [rax + 24], rdx
  mov [rax + 32], rsi
  mov [rax + 40], rdi
  mov [rax + 48], rbp
  mov [rax + 56], r8
  mov [rax + 64], r9
  mov [rax + 72], r10
  mov [rax + 80], r11
  mov [rax + 88], r12
  mov [rax + 96], r13
  mov [rax + 104], r14
  mov [rax + 112], r15
  pop rdi
  pop rsi
  pop r15
  pop r14
  pop r13
  pop r12
  pop rbp
  pop rbx
  ret
