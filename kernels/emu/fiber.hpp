// Fibers: a stack that can be left in the middle of a kernel and entered again. Hand-written for
// x86-64 (a switch is 14 instructions); elsewhere ucontext, which is slower and portable.
#pragma once
#include <stddef.h>

namespace xtemu {

constexpr size_t STACK = 128 << 10;

// A stack, with a page below it that faults.
char* map_stack();
void unmap_stack(char* stack);

}  // namespace xtemu

#if defined(__x86_64__) && !defined(XTEMU_UCONTEXT)
extern "C" void xtemu_switch(void** save, void* to);
namespace xtemu {
struct Fiber {
  void* sp;
};
inline void switch_fiber(Fiber& from, Fiber& to) { xtemu_switch(&from.sp, to.sp); }
}  // namespace xtemu
#else
#include <ucontext.h>
namespace xtemu {
struct Fiber {
  ucontext_t context;
};
inline void switch_fiber(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }
}  // namespace xtemu
#endif

namespace xtemu {
// Makes `fiber` one that runs `body` on `stack` when it is first switched to. `body` never returns.
void start_fiber(Fiber& fiber, char* stack, void (*body)());
}  // namespace xtemu
