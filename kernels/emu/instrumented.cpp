// What code compiled with -fsanitize=thread,alignment calls: before each access to memory, and where an
// object is not where its type must lie (which the accesses do not show: the compiler splits vectors).
// The sanitizers' libraries, whose functions these are by name, are not linked: the checks are those of
// check.cpp.
#include <stdint.h>

#include "check.hpp"

using xtemu::Access;
using xtemu::check_instrumented;

#define XT_ACCESSES(n)                                                                                               \
  void __tsan_read##n(void* p) { check_instrumented(p, n, n, Access::Read); }                                        \
  void __tsan_write##n(void* p) { check_instrumented(p, n, n, Access::Write); }                                      \
  void __tsan_unaligned_read##n(void* p) { check_instrumented(p, n, 1, Access::Read); }                              \
  void __tsan_unaligned_write##n(void* p) { check_instrumented(p, n, 1, Access::Write); }

#define XT_ATOMICS(bits, T)                                                                                          \
  T __tsan_atomic##bits##_load(const volatile T* p, int) {                                                           \
    check_instrumented((const void*)p, bits / 8, bits / 8, Access::Atomic);                                          \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                                     \
  }                                                                                                                  \
  void __tsan_atomic##bits##_store(volatile T* p, T v, int) {                                                        \
    check_instrumented((const void*)p, bits / 8, bits / 8, Access::Atomic);                                          \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                                        \
  }                                                                                                                  \
  T __tsan_atomic##bits##_fetch_add(volatile T* p, T v, int) {                                                       \
    check_instrumented((const void*)p, bits / 8, bits / 8, Access::Atomic);                                          \
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                                               \
  }                                                                                                                  \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* c, T v, int, int) {                            \
    check_instrumented((const void*)p, bits / 8, bits / 8, Access::Atomic);                                          \
    return __atomic_compare_exchange_n(p, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                          \
  }                                                                                                                  \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* c, T v, int a, int b) {                          \
    return __tsan_atomic##bits##_compare_exchange_strong(p, c, v, a, b);                                             \
  }                                                                                                                  \
  T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T c, T v, int a, int b) {                              \
    __tsan_atomic##bits##_compare_exchange_strong(p, &c, v, a, b);                                                   \
    return c;                                                                                                        \
  }

extern "C" {
XT_ACCESSES(1)
XT_ACCESSES(2)
XT_ACCESSES(4)
XT_ACCESSES(8)
XT_ACCESSES(16)
void __tsan_read_range(void* p, unsigned long n) { check_instrumented(p, n, 1, Access::Read); }
void __tsan_write_range(void* p, unsigned long n) { check_instrumented(p, n, 1, Access::Write); }
XT_ATOMICS(32, uint32_t)
XT_ATOMICS(64, uint64_t)
void __tsan_atomic_thread_fence(int) {}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

struct Location {
  const char* file;
  uint32_t line, column;
};
void __ubsan_handle_type_mismatch_v1(const Location* at, const void* p) {
  xtemu::check_misaligned(p, at->file, (int)at->line);
}
}
