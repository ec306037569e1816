// The CUDA subset that kernels may use, for two compilers: nvcc (device) and g++ (the emulator). The only file that
// tests which compiler is running. No cuda_bf16.h, no cooperative_groups.h.
#pragma once
#include <stdint.h>

typedef struct {
  uint16_t u;
} bf16;  // storage type, 2 bytes, the same for both compilers

#ifdef __CUDACC__  // ------------------------------------------------------------------ device
// A kernel with at most `threads` threads per block.
#define XT_KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads) name
// The same, with registers budgeted for `blocks` blocks per SM; without the number ptxas may spill to fit more
// blocks. From sm_100 on, where the same code takes more registers, for one block fewer.
#if __CUDA_ARCH__ >= 1000
#define XT_BLOCKS(blocks) ((blocks) > 1 ? (blocks) - 1 : 1)
#else
#define XT_BLOCKS(blocks) (blocks)
#endif
#define XT_KERNEL_FOR(name, threads, blocks)                                                                         \
  extern "C" __global__ void __launch_bounds__(threads, XT_BLOCKS(blocks)) name
#define XT_EXPORT(name)
// Whether a planted fault is switched on: never, outside an emulator that is built for the gates.
#define XT_FAULT(name) false
#define XT_BEGIN
#define XT_END
#define XT_SHARED(T, name, N) __shared__ __align__(16) T name[N]
#define XT_SHARED2(T, name, A, B) __shared__ __align__(16) T name[A][B]
extern __shared__ __align__(16) unsigned char xt_dyn_smem_[];
#define XT_DYN_SHARED(T, name) T* name = reinterpret_cast<T*>(xt_dyn_smem_)
#define XT_DEV __device__ __forceinline__
#define XT_MEMBER __device__ __forceinline__  // a member function
XT_DEV void xt_cp_async16(void* s, const void* g, bool pred = true) {
  uint32_t p = (uint32_t)__cvta_generic_to_shared(s);
  int n = pred ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(p), "l"(g), "r"(n) : "memory");
}
XT_DEV void xt_cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> XT_DEV void xt_cp_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
XT_DEV void xt_ldmatrix_x4(uint32_t r[4], const void* row) {
  uint32_t p = (uint32_t)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(p)
               : "memory");
}
XT_DEV void xt_ldmatrix_x2_trans(uint32_t r[2], const void* row) {
  uint32_t p = (uint32_t)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(p)
               : "memory");
}
XT_DEV void xt_mma_bf16_16816(float c[4], const uint32_t a[4], const uint32_t b[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// ---- Hopper (sm_90a only). Warpgroup matrix multiply: 64xN f32 += A[64,16] * B[N,16]^T, both operands in shared memory
// with the 128-byte swizzle: rows of 64 bf16 (128 bytes), groups of 8 rows 1024 bytes apart, and a 1024-byte-aligned
// base; 16-byte chunk c of row r is stored at chunk c ^ (r & 7). acc = 0: the sum starts from zero.
// K-major: a row has the 64 k of one of the M (or N) rows of the operand; 16 k are 32 bytes of each row.
XT_DEV uint64_t xt_wgmma_desc(const void* s) {
  uint64_t a = (uint32_t)__cvta_generic_to_shared(s);
  return (a >> 4 & 0x3fff) | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}
// MN-major: a row has 64 of M (or N) at one k; 16 k are 2048 bytes. The next 64 of M (or N) are `next` bytes further.
XT_DEV uint64_t xt_wgmma_desc_mn(const void* s, uint32_t next) {
  uint64_t a = (uint32_t)__cvta_generic_to_shared(s);
  return (a >> 4 & 0x3fff) | (uint64_t)(next >> 4) << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}
// Ends a kernel that this image does not have.
XT_DEV void xt_trap() { __trap(); }
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
XT_DEV bool xt_has_wgmma() { return true; }
// The lanes of a warp may have diverged before; they must execute the instruction together.
XT_DEV void xt_wgmma_fence() {
  __syncwarp();
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
XT_DEV void xt_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
XT_DEV void xt_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// The accumulators of `d` are not read before this point.
template <int SIZE> XT_DEV void xt_wgmma_results(float (&d)[SIZE]) {
#pragma unroll
  for (int i = 0; i < SIZE; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> XT_DEV void xt_wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
XT_DEV void xt_wgmma_m64n64k16(float d[32], uint64_t da, uint64_t db, int acc) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, "
      "%3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, "
      "%25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(da), "l"(db), "r"(acc)
      : "memory");
}
// A_MN, B_MN: the operand is MN-major.
template <bool A_MN, bool B_MN> XT_DEV void xt_wgmma_m64n128k16(float d[64], uint64_t da, uint64_t db, int acc) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, "
      "%3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, "
      "%25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "
      "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, "
      "1, 1, %67, %68;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "l"(da), "l"(db), "r"(acc), "n"(A_MN ? 1 : 0), "n"(B_MN ? 1 : 0)
      : "memory");
}
// The same with A in registers: the 16 rows of each warp, fragments as of mma.sync. B is MN-major.
XT_DEV void xt_wgmma_m64n64k16_fragment(float d[32], const uint32_t a[4], uint64_t db, int acc) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, "
      "%3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, "
      "%25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(db), "r"(acc)
      : "memory");
}
XT_DEV void xt_wgmma_m64n128k16_fragment(float d[64], const uint32_t a[4], uint64_t db, int acc) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2,"
      " %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, "
      "%25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45,"
      " %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, "
      "%66, %67}, %68, p, 1, 1, 1;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(db), "r"(acc)
      : "memory");
}
// Registers per thread of this warpgroup from here on, instead of those that the kernel was compiled for.
template <int N> XT_DEV void xt_more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> XT_DEV void xt_fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
// Barriers in shared memory that count arrivals and bytes of bulk copies. A phase ends when the arrivals and the bytes
// that it expects have come; xt_mbarrier_wait waits for the end of a phase of this parity, the first one being 0.
XT_DEV void xt_mbarrier_init(uint64_t* b, uint32_t arrivals) {
  uint32_t p = (uint32_t)__cvta_generic_to_shared(b);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(p), "r"(arrivals) : "memory");
}
// Makes the initialization of barriers visible to bulk copies.
XT_DEV void xt_mbarrier_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
XT_DEV void xt_mbarrier_arrive(uint64_t* b) {
  uint32_t p = (uint32_t)__cvta_generic_to_shared(b);
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(p) : "memory");
}
// Arrives, and makes the phase expect the bytes of copies that follow.
XT_DEV void xt_mbarrier_expect(uint64_t* b, uint32_t bytes) {
  uint32_t p = (uint32_t)__cvta_generic_to_shared(b);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(p), "r"(bytes) : "memory");
}
XT_DEV bool xt_mbarrier_try(uint64_t* b, uint32_t parity) {
  uint32_t p = (uint32_t)__cvta_generic_to_shared(b), done;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
               : "=r"(done)
               : "r"(p), "r"(parity)
               : "memory");
  return done;
}
XT_DEV uint64_t xt_nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
// Traps after 20 s: a copy that never arrives is an error and not a hang.
XT_DEV void xt_mbarrier_wait(uint64_t* b, uint32_t parity) {
  if (xt_mbarrier_try(b, parity)) return;
  uint64_t start = xt_nanoseconds();
  while (!xt_mbarrier_try(b, parity))
    if (xt_nanoseconds() - start > 20000000000ull) __trap();
}
// Tensor maps (TMA) in global memory, written by the host before the launch. A block calls xt_tensor_map_fence before
// it uses one.
XT_DEV void xt_tensor_map_fence(const void* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
}
// Starts the copy of the box of a tensor map at (column, row) to shared memory, in the map's swizzle. Elements outside
// the matrix are zero. Its bytes arrive at the barrier.
XT_DEV void xt_bulk_copy_2d(void* s, const void* map, uint32_t column, uint32_t row, uint64_t* b) {
  uint32_t p = (uint32_t)__cvta_generic_to_shared(s), q = (uint32_t)__cvta_generic_to_shared(b);
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          p),
      "l"(map), "r"(column), "r"(row), "r"(q)
      : "memory");
}
#else  // a kernel that calls xt_has_wgmma first never comes here
XT_DEV bool xt_has_wgmma() { return false; }
XT_DEV void xt_wgmma_fence() {}
XT_DEV void xt_proxy_fence() {}
XT_DEV void xt_wgmma_commit() {}
template <int SIZE> XT_DEV void xt_wgmma_results(float (&)[SIZE]) {}
template <int N> XT_DEV void xt_wgmma_wait() {}
XT_DEV void xt_wgmma_m64n64k16(float*, uint64_t, uint64_t, int) { __trap(); }
template <bool A_MN, bool B_MN> XT_DEV void xt_wgmma_m64n128k16(float*, uint64_t, uint64_t, int) { __trap(); }
XT_DEV void xt_wgmma_m64n64k16_fragment(float*, const uint32_t*, uint64_t, int) { __trap(); }
XT_DEV void xt_wgmma_m64n128k16_fragment(float*, const uint32_t*, uint64_t, int) { __trap(); }
template <int N> XT_DEV void xt_more_registers() {}
template <int N> XT_DEV void xt_fewer_registers() {}
XT_DEV void xt_mbarrier_init(uint64_t*, uint32_t) {}
XT_DEV void xt_mbarrier_fence() {}
XT_DEV void xt_mbarrier_arrive(uint64_t*) {}
XT_DEV void xt_mbarrier_expect(uint64_t*, uint32_t) {}
XT_DEV void xt_mbarrier_wait(uint64_t*, uint32_t) {}
XT_DEV void xt_tensor_map_fence(const void*) {}
XT_DEV void xt_bulk_copy_2d(void*, const void*, uint32_t, uint32_t, uint64_t*) { __trap(); }
#endif
// Adds to a counter in global memory and returns its previous value. Release and acquire for all blocks of the device:
// what happened before the addition of one block happens before what follows a later addition of another block.
XT_DEV uint32_t xt_atomic_add_acq_rel(uint32_t* counter, uint32_t v) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(counter), "r"(v) : "memory");
  return old;
}
// Two f32 to bf16x2, round to nearest even, NaN to 0x7fff; `low` in the lower half.
XT_DEV uint32_t xt_pack_bf16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// The larger value; NaN if one of them is NaN.
XT_DEV float xt_max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
// A pointer to global memory, where the compiler cannot see that it is one: its loads are then not generic.
template <class T> XT_DEV T* xt_global(T* p) {
  __builtin_assume(__isGlobal(p));
  return p;
}
// Programmatic dependent launch (sm_90 and later): the blocks of a kernel may start before the previous kernel of a graph
// has finished. Every kernel calls this before it accesses global memory: it waits until that kernel has finished and
// its writes are visible, then lets the blocks of the next kernel start.
#if __CUDA_ARCH__ >= 900
XT_DEV bool xt_has_grid_dependency_sync() { return true; }
XT_DEV void xt_grid_dependency_sync() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#else
XT_DEV bool xt_has_grid_dependency_sync() { return false; }
XT_DEV void xt_grid_dependency_sync() {}
#endif
// Brings the line of an address to the L2 cache. It returns no value, so a kernel may call it before it waits for the
// previous one.
XT_DEV void xt_prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
// n / d, correctly rounded for 2^-60 <= |n| <= 2^60 and 1 <= d <= 2^64, without the branch of a division for other
// operands. n = 0 gives a zero of either sign; other operands give some value, in the emulator a NaN.
XT_DEV float xt_quotient(float n, float d) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(d));
  y = fmaf(fmaf(-d, y, 1.0f), y, y);
  float q = n * y;
  q = fmaf(fmaf(-d, q, n), y, q);
  return fmaf(fmaf(-d, q, n), y, q);
}
XT_DEV float xt_bits_f(uint32_t u) { return __uint_as_float(u); }
XT_DEV uint32_t xt_f_bits(float f) { return __float_as_uint(f); }
#else  // ------------------------------------------------------------------ emulator
#include "emu/cuda.hpp"
#endif

// A counter, and the number of blocks that reach it.
struct XtArrival {
  uint32_t *counter, blocks;
};

// xt_last_block for the counters i < n <= N, with one thread for each: arrival(i) is counter i. Returns an array in shared
// memory: whether this block is the last one of each. A counter that one block reaches is not accessed.
template <uint32_t N, class Arrival> XT_DEV const uint32_t* xt_last_blocks(uint32_t n, Arrival arrival) {
  XT_SHARED(uint32_t, last, N);
  if (!XT_FAULT(BlockArrivesEarly)) __syncthreads();
  if (threadIdx.x < n) {
    XtArrival at = arrival(threadIdx.x);
    uint32_t before = at.blocks - 1;
    if (at.blocks != 1)
      before = XT_FAULT(BlockArrivalRelaxed) ? atomicAdd(at.counter, 1u) : xt_atomic_add_acq_rel(at.counter, 1u);
    last[threadIdx.x] = before + 1 == at.blocks;
    if (at.blocks != 1 && before + 1 == at.blocks && !XT_FAULT(BlockCounterNotReset)) *at.counter = 0;
  }
  __syncthreads();
  return last;
}

// Returns true in the last of `blocks` blocks to reach `counter`; that block then sees everything the others wrote
// before reaching it. The counter is zero at launch and is reset to zero. All threads of a block must call it, once
// per counter and launch.
XT_DEV bool xt_last_block(uint32_t* counter, uint32_t blocks) {
  return *xt_last_blocks<1>(1, [=](uint32_t) { return XtArrival{counter, blocks}; });
}
