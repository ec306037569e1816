// Fibers: stacks that a kernel thread can be suspended on and resumed. x86-64 uses hand-written assembly (14
// instructions per switch); other architectures use ucontext, which is slower but portable.
#pragma once
#include <stddef.h>

namespace xtemu {

constexpr size_t STACK = 128 << 10;

// Maps a stack with a guard page below it.
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
// Prepares `fiber` to run `body` on `stack` at the first switch to it. `body` never returns.
void start_fiber(Fiber& fiber, char* stack, void (*body)());
}  // namespace xtemu
