// objc_msgSend over GNU's objc_msg_lookup: find the method, and jump to it with all arguments.
void *(*mock_lookup)(void *receiver, void *selector);

#if defined(__x86_64__)
__asm__(
    ".text\n.globl mock_send\n.type mock_send,@function\nmock_send:\n"
    "  push %rbp\n  mov %rsp, %rbp\n  sub $192, %rsp\n"
    "  mov %rdi, 0(%rsp)\n  mov %rsi, 8(%rsp)\n  mov %rdx, 16(%rsp)\n  mov %rcx, 24(%rsp)\n"
    "  mov %r8, 32(%rsp)\n  mov %r9, 40(%rsp)\n  mov %rax, 48(%rsp)\n"
    "  movaps %xmm0, 64(%rsp)\n  movaps %xmm1, 80(%rsp)\n  movaps %xmm2, 96(%rsp)\n"
    "  movaps %xmm3, 112(%rsp)\n  movaps %xmm4, 128(%rsp)\n  movaps %xmm5, 144(%rsp)\n"
    "  movaps %xmm6, 160(%rsp)\n  movaps %xmm7, 176(%rsp)\n"
    "  mov mock_lookup@GOTPCREL(%rip), %rax\n  call *(%rax)\n  mov %rax, %r11\n"
    "  mov 0(%rsp), %rdi\n  mov 8(%rsp), %rsi\n  mov 16(%rsp), %rdx\n  mov 24(%rsp), %rcx\n"
    "  mov 32(%rsp), %r8\n  mov 40(%rsp), %r9\n  mov 48(%rsp), %rax\n"
    "  movaps 64(%rsp), %xmm0\n  movaps 80(%rsp), %xmm1\n  movaps 96(%rsp), %xmm2\n"
    "  movaps 112(%rsp), %xmm3\n  movaps 128(%rsp), %xmm4\n  movaps 144(%rsp), %xmm5\n"
    "  movaps 160(%rsp), %xmm6\n  movaps 176(%rsp), %xmm7\n"
    "  leave\n  jmp *%r11\n");
#elif defined(__aarch64__)
__asm__(
    ".text\n.globl mock_send\n.type mock_send,%function\nmock_send:\n"
    "  sub sp, sp, #224\n  stp x29, x30, [sp]\n  mov x29, sp\n"
    "  stp x0, x1, [sp, #16]\n  stp x2, x3, [sp, #32]\n  stp x4, x5, [sp, #48]\n"
    "  stp x6, x7, [sp, #64]\n  str x8, [sp, #80]\n"
    "  stp q0, q1, [sp, #96]\n  stp q2, q3, [sp, #128]\n  stp q4, q5, [sp, #160]\n"
    "  stp q6, q7, [sp, #192]\n"
    "  adrp x9, :got:mock_lookup\n  ldr x9, [x9, :got_lo12:mock_lookup]\n  ldr x9, [x9]\n"
    "  blr x9\n  mov x16, x0\n"
    "  ldp x0, x1, [sp, #16]\n  ldp x2, x3, [sp, #32]\n  ldp x4, x5, [sp, #48]\n"
    "  ldp x6, x7, [sp, #64]\n  ldr x8, [sp, #80]\n"
    "  ldp q0, q1, [sp, #96]\n  ldp q2, q3, [sp, #128]\n  ldp q4, q5, [sp, #160]\n"
    "  ldp q6, q7, [sp, #192]\n"
    "  ldp x29, x30, [sp]\n  add sp, sp, #224\n  br x16\n");
#endif
