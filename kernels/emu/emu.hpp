// Host side of xt.cuh: CUDA built-ins on fibers. Included by kernel files only when not compiled by nvcc.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <stddef.h>
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

namespace xtemu {
struct TCtx { uint3 tid, bid; dim3 bdim, gdim; };       // first member of the runtime's Thread
extern thread_local TCtx* cur __attribute__((tls_model("initial-exec")));
typedef void (*WarpFn)(uint32_t mask, uint32_t (*in)[16], uint32_t (*out)[4]);
void sync_block(const char* file, int line);
int  sync_block_red(int kind, int pred, const char* file, int line);   // 0 and, 1 or, 2 count
void named_barrier(int id, int count, const char* file, int line);
uint32_t* warp_coll(uint32_t mask, WarpFn f, const uint32_t* in, int nin, const char* file, int line); // -> this lane's out[4]
void grid_sync(const char* file, int line);
void* shared_mem(const void* key, size_t bytes);
void* dyn_shared();
void cp_async(void* s, const void* g, size_t n, size_t src_n);
void cp_commit();
void cp_wait(int n);
[[noreturn]] void fail(const char* fmt, ...);
void spin_hint();
uint64_t wgmma_desc(const void* s);
void wgmma(float* d, uint64_t da, uint64_t db, int acc, const char* f, int l);
void wgmma_commit();
void wgmma_wait(int keep, const char* f, int l);
void proxy_fence();
void op_shfl(uint32_t, uint32_t (*)[16], uint32_t (*)[4]);
void op_ballot(uint32_t, uint32_t (*)[16], uint32_t (*)[4]);
void op_ldm4(uint32_t, uint32_t (*)[16], uint32_t (*)[4]);
void op_ldm2t(uint32_t, uint32_t (*)[16], uint32_t (*)[4]);
void op_mma16816(uint32_t, uint32_t (*)[16], uint32_t (*)[4]);
struct Param { uint32_t size; };
struct KernelDesc { const char* name; void (*call)(void** args); int nparams; const uint32_t* psize; const char* file; };
void reg(const KernelDesc& d);
template <class F> struct Thunk;
template <class... A> struct Thunk<void (*)(A...)> {
  template <void (*F)(A...)> static void call(void** p) { go<F>(p, __make_integer_seq_<sizeof...(A)>()); }
  template <int... I> struct seq {};
  template <int N, int... I> struct mk : mk<N - 1, N - 1, I...> {};
  template <int... I> struct mk<0, I...> { typedef seq<I...> type; };
  template <int N> using __make_integer_seq_ = typename mk<N>::type;
  template <void (*F)(A...), int... I> static void go(void** p, seq<I...>) { (void)p; F(*(typename rm<A>::type*)p[I]...); }
  template <class T> struct rm { typedef T type; };
  template <class T> struct rm<const T> { typedef T type; };
  static constexpr int n = sizeof...(A);
  static inline const uint32_t sizes[sizeof...(A) + 1] = {(uint32_t)sizeof(A)..., 0};
};
struct Reg { Reg(const KernelDesc& d) { reg(d); } };
}  // namespace xtemu

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __constant__ static const
#define __align__(n) alignas(n)
#define XT_DEV static inline
#define threadIdx (::xtemu::cur->tid)
#define blockIdx  (::xtemu::cur->bid)
#define blockDim  (::xtemu::cur->bdim)
#define gridDim   (::xtemu::cur->gdim)
static constexpr int warpSize = 32;
#define XT_KERNEL(name, threads) static void name
#define XT_BEGIN namespace {
#define XT_END }
#define XT_EXPORT(k) static ::xtemu::Reg xt_reg_##k({#k, &::xtemu::Thunk<decltype(&k)>::template call<&k>, ::xtemu::Thunk<decltype(&k)>::n, ::xtemu::Thunk<decltype(&k)>::sizes, __FILE__});
#define XT_SHARED(T, name, N)     static const char xt_key_##name = 0; T* name = (T*)::xtemu::shared_mem(&xt_key_##name, sizeof(T) * (N))
#define XT_SHARED2(T, name, A, B) static const char xt_key_##name = 0; T (*name)[B] = (T (*)[B])::xtemu::shared_mem(&xt_key_##name, sizeof(T) * (A) * (B))
#define XT_DYN_SHARED(T, name)    T* name = (T*)::xtemu::dyn_shared()
#define __syncthreads()         ::xtemu::sync_block(__FILE__, __LINE__)
#define __syncthreads_and(p)    ::xtemu::sync_block_red(0, !!(p), __FILE__, __LINE__)
#define __syncthreads_or(p)     ::xtemu::sync_block_red(1, !!(p), __FILE__, __LINE__)
#define __syncthreads_count(p)  ::xtemu::sync_block_red(2, !!(p), __FILE__, __LINE__)
#define xt_grid_sync(bar)       ((void)(bar), ::xtemu::grid_sync(__FILE__, __LINE__))
#define xt_bar_sync(id, n)      ::xtemu::named_barrier(id, n, __FILE__, __LINE__)
static inline void xt_syncwarp_(uint32_t m, const char* f, int l) { ::xtemu::warp_coll(m, nullptr, nullptr, 0, f, l); }
static inline uint32_t xt_mask_(uint32_t m = 0xffffffffu) { return m; }
#define __syncwarp(...) xt_syncwarp_(xt_mask_(__VA_ARGS__), __FILE__, __LINE__)
#define __threadfence() __sync_synchronize()
#define __threadfence_block() ((void)0)
namespace xtemu {
enum { SH_IDX, SH_UP, SH_DOWN, SH_XOR };
template <class T> static inline T shfl(int kind, uint32_t m, T v, int arg, int width, const char* f, int l) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffle of 4 or 8 bytes");
  uint32_t in[5] = {0, 0, (uint32_t)kind, (uint32_t)arg, (uint32_t)width}; memcpy(in, &v, sizeof(T));
  uint32_t* o = warp_coll(m, op_shfl, in, 5, f, l); T r; memcpy(&r, o, sizeof(T)); return r;
}
static inline uint32_t ballot(uint32_t m, int p, const char* f, int l) { uint32_t in[1] = {(uint32_t)!!p}; return warp_coll(m, op_ballot, in, 1, f, l)[0]; }
template <class T> static inline T atomic_add(T* p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
static inline float atomic_add(float* p, float v) {
  uint32_t o, n; float f; __atomic_load((uint32_t*)p, &o, __ATOMIC_RELAXED);
  do { memcpy(&f, &o, 4); f += v; memcpy(&n, &f, 4); } while (!__atomic_compare_exchange_n((uint32_t*)p, &o, n, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  memcpy(&f, &o, 4); return f;
}
template <class T> static inline T atomic_max(T* p, T v) { T o = __atomic_load_n(p, __ATOMIC_RELAXED); while (o < v && !__atomic_compare_exchange_n(p, &o, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {} return o; }
template <class T> static inline T atomic_cas(T* p, T c, T v) { __atomic_compare_exchange_n(p, &c, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); return c; }
}
#define __shfl_sync(m, v, s)      ::xtemu::shfl(::xtemu::SH_IDX, m, v, s, 32, __FILE__, __LINE__)
#define __shfl_xor_sync(m, v, s)  ::xtemu::shfl(::xtemu::SH_XOR, m, v, s, 32, __FILE__, __LINE__)
#define __shfl_down_sync(m, v, s) ::xtemu::shfl(::xtemu::SH_DOWN, m, v, s, 32, __FILE__, __LINE__)
#define __shfl_up_sync(m, v, s)   ::xtemu::shfl(::xtemu::SH_UP, m, v, s, 32, __FILE__, __LINE__)
#define __ballot_sync(m, p)       ::xtemu::ballot(m, p, __FILE__, __LINE__)
#define __any_sync(m, p)          (::xtemu::ballot(m, p, __FILE__, __LINE__) != 0)
#define __all_sync(m, p)          (::xtemu::ballot(m, p, __FILE__, __LINE__) == (m))
#define atomicAdd  ::xtemu::atomic_add
#define atomicMax  ::xtemu::atomic_max
#define atomicCAS  ::xtemu::atomic_cas
#define xt_cp_async16(s, g, ...)  ::xtemu::cp_async(s, g, 16, xt_pred_(__VA_ARGS__) ? 16 : 0)
static inline bool xt_pred_(bool p = true) { return p; }
static inline void xt_cp_commit() { ::xtemu::cp_commit(); }
template <int N> static inline void xt_cp_wait() { ::xtemu::cp_wait(N); }
static inline void xt_ldm_(void (*f)(uint32_t, uint32_t (*)[16], uint32_t (*)[4]), uint32_t* r, int n, const void* row, const char* fl, int l) {
  uint64_t p = (uint64_t)row; uint32_t in[2]; memcpy(in, &p, 8);
  uint32_t* o = ::xtemu::warp_coll(0xffffffffu, f, in, 2, fl, l); for (int i = 0; i < n; i++) r[i] = o[i];
}
#define xt_ldmatrix_x4(r, row)       xt_ldm_(::xtemu::op_ldm4, r, 4, row, __FILE__, __LINE__)
#define xt_ldmatrix_x2_trans(r, row) xt_ldm_(::xtemu::op_ldm2t, r, 2, row, __FILE__, __LINE__)
static inline void xt_mma_(float c[4], const uint32_t a[4], const uint32_t b[2], const char* f, int l) {
  uint32_t in[10]; memcpy(in, a, 16); memcpy(in + 4, b, 8); memcpy(in + 6, c, 16);
  memcpy(c, ::xtemu::warp_coll(0xffffffffu, ::xtemu::op_mma16816, in, 10, f, l), 16);
}
#define xt_mma_bf16_16816(c, a, b) xt_mma_(c, a, b, __FILE__, __LINE__)
#define __CUDA_ARCH_FEAT_SM90_ALL 1
static inline uint64_t xt_wgmma_desc(const void* s) { return ::xtemu::wgmma_desc(s); }
static inline void xt_wgmma_fence() {}
static inline void xt_proxy_fence() { ::xtemu::proxy_fence(); }
static inline void xt_wgmma_commit() { ::xtemu::wgmma_commit(); }
template <int N> static inline void xt_wgmma_wait() { ::xtemu::wgmma_wait(N, "wgmma wait_group", N); }
#define xt_wgmma_m64n64k16(d, da, db, acc) ::xtemu::wgmma(d, da, db, acc, __FILE__, __LINE__)
static inline float    xt_bits_f(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t xt_f_bits(float f)    { uint32_t u; memcpy(&u, &f, 4); return u; }
#define __uint_as_float xt_bits_f
#define __float_as_uint xt_f_bits
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline int __popc(uint32_t v) { return __builtin_popcount(v); }
static inline int __ffs(uint32_t v) { return __builtin_ffs((int)v); }
static inline int __clz(uint32_t v) { return v ? __builtin_clz(v) : 32; }
template <class T> static inline T __ldg(const T* p) { return *p; }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
