// The emulator half of xt.cuh: CUDA built-ins implemented with the functions of device.hpp.
#pragma once
#include <math.h>
#include <string.h>

#include "device.hpp"

// ---- language
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __constant__ static const
#define __align__(n) alignas(n)
#define XT_DEV static inline
#define XT_MEMBER inline
#define XT_BEGIN namespace {
#define XT_END }
#define XT_KERNEL(name, threads)                                                                                     \
  constexpr uint32_t xt_max_threads_##name = threads;                                                                \
  static void name
#define XT_KERNEL_FOR(name, threads, blocks) XT_KERNEL(name, threads)
#define XT_EXPORT(k)                                                                                                 \
  static ::xtemu::Export xt_export_##k({nullptr, #k, &::xtemu::Signature<decltype(&k)>::template call<&k>,           \
                                        ::xtemu::Signature<decltype(&k)>::parameters,                                \
                                        ::xtemu::Signature<decltype(&k)>::count, xt_max_threads_##k});

// ---- planted faults
// Compares the fault of the launch, which the host sets (gpu/emulated.rs), with a name of the enum `Fault`.
#ifdef XTEMU_FAULTS
#define XT_FAULT(name)                                                                                               \
  (::xtemu::thread_context->position->fault == std::integral_constant<uint64_t, ::xtemu::fault_id(#name)>::value)
#else
#define XT_FAULT(name) false
#endif

// ---- built-in variables
#define threadIdx (::xtemu::thread_context->thread)
#define blockIdx (::xtemu::thread_context->position->block)
#define blockDim (::xtemu::thread_context->position->block_dim)
#define gridDim (::xtemu::thread_context->position->grid_dim)
static constexpr int warpSize = 32;

// ---- shared memory
#define XT_SHARED(T, name, N)                                                                                        \
  static const char xt_key_##name = 0;                                                                               \
  T* name = (T*)::xtemu::shared_variable(&xt_key_##name, sizeof(T) * (N), __FILE__, __LINE__)
#define XT_SHARED2(T, name, A, B)                                                                                    \
  static const char xt_key_##name = 0;                                                                               \
  T(*name)[B] = (T(*)[B])::xtemu::shared_variable(&xt_key_##name, sizeof(T) * (A) * (B), __FILE__, __LINE__)
#define XT_DYN_SHARED(T, name) T* name = (T*)::xtemu::dynamic_shared(__FILE__, __LINE__)

// ---- barriers and fences
#define __syncthreads() ::xtemu::block_barrier(__FILE__, __LINE__)
#define __syncthreads_and(p) ::xtemu::block_vote(::xtemu::Vote::All, !!(p), __FILE__, __LINE__)
#define __syncthreads_or(p) ::xtemu::block_vote(::xtemu::Vote::Any, !!(p), __FILE__, __LINE__)
#define __syncthreads_count(p) ::xtemu::block_vote(::xtemu::Vote::Count, !!(p), __FILE__, __LINE__)
#define __threadfence() __sync_synchronize()
#define __threadfence_block() ((void)0)

// ---- warps
namespace xtemu {
static inline uint32_t mask_of(uint32_t mask = 0xffffffffu) { return mask; }
static inline void warp_barrier(uint32_t mask, const char* file, int line) { collective(mask, nullptr, file, line); }
template <class T>
static inline T shuffle(Operation operation, uint32_t mask, T value, uint32_t operand, const char* file, int line) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
  memcpy(thread_context->lane->in, &value, sizeof(T));
  thread_context->lane->in[2] = operand;
  const uint32_t* out = collective(mask, operation, file, line);
  memcpy(&value, out, sizeof(T));
  return value;
}
static inline uint32_t vote(uint32_t mask, int predicate, const char* file, int line) {
  thread_context->lane->in[0] = !!predicate;
  return collective(mask, ballot, file, line)[0];
}
}  // namespace xtemu
#define __syncwarp(...) ::xtemu::warp_barrier(::xtemu::mask_of(__VA_ARGS__), __FILE__, __LINE__)
#define __shfl_sync(m, v, s) ::xtemu::shuffle(::xtemu::shuffle_index, m, v, s, __FILE__, __LINE__)
#define __shfl_xor_sync(m, v, s) ::xtemu::shuffle(::xtemu::shuffle_xor, m, v, s, __FILE__, __LINE__)
#define __shfl_down_sync(m, v, s) ::xtemu::shuffle(::xtemu::shuffle_down, m, v, s, __FILE__, __LINE__)
#define __shfl_up_sync(m, v, s) ::xtemu::shuffle(::xtemu::shuffle_up, m, v, s, __FILE__, __LINE__)
#define __ballot_sync(m, p) ::xtemu::vote(m, p, __FILE__, __LINE__)
#define __any_sync(m, p) (::xtemu::vote(m, p, __FILE__, __LINE__) != 0)
#define __all_sync(m, p) (::xtemu::vote(m, !(p), __FILE__, __LINE__) == 0)

// ---- atomics
namespace xtemu {
template <class T> static inline T atomic_add(T* p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
static inline float atomic_add(float* p, float v) {
  uint32_t *word = (uint32_t*)p, old = __atomic_load_n(word, __ATOMIC_RELAXED), sum;
  float f;
  do {
    memcpy(&f, &old, 4);
    f += v;
    memcpy(&sum, &f, 4);
  } while (!__atomic_compare_exchange_n(word, &old, sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  memcpy(&f, &old, 4);
  return f;
}
template <class T> static inline T atomic_max(T* p, T v) {
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (old < v && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  return old;
}
template <class T> static inline T atomic_cas(T* p, T expected, T v) {
  __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
}  // namespace xtemu
#define atomicAdd ::xtemu::atomic_add
#define atomicMax ::xtemu::atomic_max
#define atomicCAS ::xtemu::atomic_cas

// ---- order of kernels
template <class T> static inline T* xt_global(T* p) { return p; }
static inline bool xt_has_grid_dependency_sync() { return true; }
static inline void xt_prefetch_l2(const void*) {}
static inline void xt_grid_dependency_sync() { ::xtemu::grid_dependency_synced(); }

// ---- synchronization between blocks
static inline uint32_t xt_atomic_add_acq_rel(uint32_t* counter, uint32_t v) {
  uint32_t old = __atomic_fetch_add(counter, v, __ATOMIC_ACQ_REL);
  ::xtemu::released_and_acquired(counter);
  return old;
}

// ---- asynchronous copies
namespace xtemu {
static inline bool present(bool present = true) { return present; }
}  // namespace xtemu
#define xt_cp_async16(to, from, ...) ::xtemu::copy_start(to, from, ::xtemu::present(__VA_ARGS__), __FILE__, __LINE__)
static inline void xt_cp_commit() { ::xtemu::copy_commit(); }
template <int N> static inline void xt_cp_wait() { ::xtemu::copy_wait(N); }

// ---- tensor cores
namespace xtemu {
static inline void load_matrix(Operation operation, uint32_t* r, int words, const void* row, const char* file,
                               int line) {
  memcpy(thread_context->lane->in, &row, 8);
  memcpy(r, collective(0xffffffffu, operation, file, line), words * 4);
}
static inline void mma(float* c, const uint32_t* a, const uint32_t* b, const char* file, int line) {
  uint32_t* in = thread_context->lane->in;
  memcpy(in, a, 16);
  memcpy(in + 4, b, 8);
  memcpy(in + 6, c, 16);
  memcpy(c, collective(0xffffffffu, mma_16816, file, line), 16);
}
}  // namespace xtemu
#define xt_ldmatrix_x4(r, row) ::xtemu::load_matrix(::xtemu::ldmatrix_x4, r, 4, row, __FILE__, __LINE__)
#define xt_ldmatrix_x2_trans(r, row) ::xtemu::load_matrix(::xtemu::ldmatrix_x2_trans, r, 2, row, __FILE__, __LINE__)
#define xt_mma_bf16_16816(c, a, b) ::xtemu::mma(c, a, b, __FILE__, __LINE__)

static inline bool xt_has_wgmma() { return ::xtemu::wgmma_available(); }
static inline uint64_t xt_wgmma_desc(const void* s) { return ::xtemu::wgmma_descriptor(s, 16); }
static inline uint64_t xt_wgmma_desc_mn(const void* s, uint32_t next) { return ::xtemu::wgmma_descriptor(s, next); }
static inline void xt_wgmma_fence() {}
static inline void xt_proxy_fence() {}
static inline void xt_wgmma_commit() { ::xtemu::wgmma_commit(); }
template <int N> static inline void xt_wgmma_wait() { ::xtemu::wgmma_wait(N); }
template <int SIZE> static inline void xt_wgmma_results(float (&)[SIZE]) {}
#define xt_wgmma_m64n64k16(d, da, db, acc)                                                                           \
  ::xtemu::wgmma_start(d, 64, {da, false}, {db, false}, acc, __FILE__, __LINE__)
template <bool A_MN, bool B_MN>
static inline void xt_wgmma_m64n128k16(float* d, uint64_t da, uint64_t db, int acc,
                                       const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  ::xtemu::wgmma_start(d, 128, {da, A_MN}, {db, B_MN}, acc, file, line);
}
#define xt_wgmma_m64n64k16_fragment(d, a, db, acc)                                                                   \
  ::xtemu::wgmma_start(d, 64, {0, false, a}, {db, true}, acc, __FILE__, __LINE__)
#define xt_wgmma_m64n128k16_fragment(d, a, db, acc)                                                                  \
  ::xtemu::wgmma_start(d, 128, {0, false, a}, {db, true}, acc, __FILE__, __LINE__)
template <int N> static inline void xt_more_registers() {}
template <int N> static inline void xt_fewer_registers() {}
#define xt_trap() ::xtemu::trap(__FILE__, __LINE__)

// ---- bulk copies
#define xt_mbarrier_init(b, arrivals) ::xtemu::mbarrier_init(b, arrivals, __FILE__, __LINE__)
static inline void xt_mbarrier_fence() { ::xtemu::mbarrier_fence(); }
#define xt_mbarrier_arrive(b) ::xtemu::mbarrier_arrive(b, 0, __FILE__, __LINE__)
#define xt_mbarrier_expect(b, bytes) ::xtemu::mbarrier_arrive(b, bytes, __FILE__, __LINE__)
#define xt_mbarrier_wait(b, parity) ::xtemu::mbarrier_wait(b, parity, __FILE__, __LINE__)
static inline void xt_tensor_map_fence(const void* map) { ::xtemu::tensor_map_fence(map); }
#define xt_bulk_copy_2d(s, map, column, row, b) ::xtemu::bulk_copy_start(s, map, column, row, b, __FILE__, __LINE__)

// ---- arithmetic
static inline float xt_bits_f(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}
static inline uint32_t xt_f_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}
static inline uint32_t xt_pack_bf16(float low, float high) {
  auto round = [](float x) -> uint32_t {
    uint32_t u = xt_f_bits(x);
    return x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
  };
  return round(low) | round(high) << 16;
}
static inline float xt_quotient(float n, float d) {
  float size = fabsf(n);
  bool in_range = (size == 0.0f || (size >= 0x1p-60f && size <= 0x1p60f)) && d >= 1.0f && d <= 0x1p64f;
  return in_range ? n / d : NAN;
}
static inline float xt_max_nan(float a, float b) { return a != a || b != b ? NAN : b > a ? b : a; }
#define __uint_as_float xt_bits_f
#define __float_as_uint xt_f_bits
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline int __popc(uint32_t v) { return __builtin_popcount(v); }
static inline int __ffs(uint32_t v) { return __builtin_ffs((int)v); }
static inline int __clz(uint32_t v) { return v ? __builtin_clz(v) : 32; }
static inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }
template <class T> static inline T __ldg(const T* p) { return *p; }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
