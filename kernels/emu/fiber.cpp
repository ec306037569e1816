#include "fiber.hpp"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

namespace xtemu {

char* map_stack() {
  void* p = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  mprotect(p, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE);
  return (char*)p;
}

void unmap_stack(char* stack) { munmap(stack, STACK); }

#if defined(__x86_64__) && !defined(XTEMU_UCONTEXT)

// Saves the callee-saved registers, switches stacks and restores the registers of the other fiber.
asm(R"(.text
.p2align 4
.globl xtemu_switch
.hidden xtemu_switch
.type xtemu_switch,@function
xtemu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size xtemu_switch, .-xtemu_switch
.section .note.GNU-stack,"",@progbits
.text
)");

void start_fiber(Fiber& fiber, char* stack, void (*body)()) {
  // Cache coloring: stacks are mapped at equal distances, so their tops would all fall into one cache set.
  uintptr_t color = (uintptr_t)stack / STACK * 5 % 61;
  void** sp = (void**)((uintptr_t)stack + STACK - 64 - color * 64);
  *--sp = nullptr;  // return address of `body`: stops unwinders
  *--sp = (void*)body;
  for (int i = 0; i < 6; i++) *--sp = nullptr;
  fiber.sp = sp;
}

#else

void start_fiber(Fiber& fiber, char* stack, void (*body)()) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = STACK;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, body, 0);
}

#endif

}  // namespace xtemu
