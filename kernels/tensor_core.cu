// tensor_core_*    raw tensor-core products for the gates: d = c + a bᵀ
//                  a, b [T, 64, 64] bf16, both K-major; c, d [T, 64, 64] f32
//   tensor_core_mma        mma.sync, four k-steps of 16, ascending
//   tensor_core_swapped    the same with A and B operands exchanged
//   tensor_core_wgmma      wgmma from shared memory (sm_90a; traps elsewhere)
//   tensor_core_has_wgmma  *has = 1 if this image was compiled for sm_90a, otherwise 0; one thread
// Launch: one block of 4 warps per product, 16 rows of the result per warp.
// Order: four k-steps of 16. CPU twin: xtrain-tensor/src/tensor_core.rs.
#include "xt.cuh"

XT_DEV uint32_t pair_at(const bf16* x) { return *reinterpret_cast<const uint32_t*>(x); }

// c += 16 rows of p by 8 rows of q, from row 0 of each pointer.
XT_DEV void product_16x8(float c[4], const bf16* p, const bf16* q) {
  uint32_t lane = threadIdx.x & 31, line = lane / 4, at = lane % 4 * 2;
  for (uint32_t k = at; k < 64; k += 16) {
    uint32_t a[4] = {pair_at(p + line * 64 + k), pair_at(p + (line + 8) * 64 + k), pair_at(p + line * 64 + k + 8),
                     pair_at(p + (line + 8) * 64 + k + 8)};
    uint32_t b[2] = {pair_at(q + line * 64 + k), pair_at(q + line * 64 + k + 8)};
    xt_mma_bf16_16816(c, a, b);
  }
}

// Row and column of accumulator element e of this lane in a 16 x 8 result.
struct Cell {
  uint32_t p, q;
};
XT_DEV Cell cell_of(uint32_t e) {
  uint32_t lane = threadIdx.x & 31;
  return {lane / 4 + e / 2 * 8, lane % 4 * 2 + e % 2};
}

template <bool SWAPPED> XT_DEV void products_by_mma(const bf16* a, const bf16* b, const float* c, float* d) {
  size_t base = (size_t)blockIdx.x * 4096;
  const bf16 *p = (SWAPPED ? b : a) + base, *q = (SWAPPED ? a : b) + base;
  for (uint32_t p0 = threadIdx.x / 32 * 16, q0 = 0; q0 < 64; q0 += 8) {
    float v[4];
    size_t at[4];
    for (uint32_t e = 0; e < 4; e++) {
      Cell cell = cell_of(e);
      uint32_t row = SWAPPED ? q0 + cell.q : p0 + cell.p, column = SWAPPED ? p0 + cell.p : q0 + cell.q;
      at[e] = base + row * 64 + column;
      v[e] = c[at[e]];
    }
    product_16x8(v, p + p0 * 64, q + q0 * 64);
    for (uint32_t e = 0; e < 4; e++) d[at[e]] = v[e];
  }
}

XT_KERNEL(tensor_core_mma, 128)(const bf16* a, const bf16* b, const float* c, float* d) {
  xt_grid_dependency_sync();
  products_by_mma<false>(a, b, c, d);
}
XT_EXPORT(tensor_core_mma)

XT_KERNEL(tensor_core_swapped, 128)(const bf16* a, const bf16* b, const float* c, float* d) {
  xt_grid_dependency_sync();
  products_by_mma<true>(a, b, c, d);
}
XT_EXPORT(tensor_core_swapped)

// Copies a 64 x 64 tile to shared memory with the 128-byte swizzle.
XT_DEV void load_swizzled(bf16* s, const bf16* x) {
  for (uint32_t i = threadIdx.x; i < 512; i += 128) {
    uint32_t line = i / 8, part = i % 8;
    *reinterpret_cast<uint4*>(s + line * 64 + (part ^ (line & 7)) * 8) =
        *reinterpret_cast<const uint4*>(x + line * 64 + part * 8);
  }
}

XT_KERNEL(tensor_core_has_wgmma, 1)(uint32_t* has) {
  xt_grid_dependency_sync();
  *has = xt_has_wgmma() || XT_FAULT(WgmmaAssumed);
}
XT_EXPORT(tensor_core_has_wgmma)

XT_KERNEL(tensor_core_wgmma, 128)(const bf16* a, const bf16* b, const float* c, float* d) {
  xt_grid_dependency_sync();
  XT_DYN_SHARED(bf16, shared);  // 17 KiB: two operands of 8 KiB, aligned to 1024
  bf16 *as = shared + (1024 - (reinterpret_cast<uintptr_t>(shared) & 1023)) % 1024 / 2, *bs = as + 4096;
  size_t base = (size_t)blockIdx.x * 4096;
  load_swizzled(as, a + base);
  load_swizzled(bs, b + base);
  xt_proxy_fence();
  __syncthreads();
  float v[32];
  uint32_t row0 = threadIdx.x / 32 * 16;
#pragma unroll
  for (uint32_t i = 0; i < 32; i++) {
    Cell cell = cell_of(i % 4);
    v[i] = c[base + (row0 + cell.p) * 64 + i / 4 * 8 + cell.q];
  }
  xt_wgmma_fence();
#pragma unroll
  for (uint32_t k = 0; k < (XT_FAULT(WgmmaStepDiffers) ? 48 : 64); k += 16)
    xt_wgmma_m64n64k16(v, xt_wgmma_desc(as + k), xt_wgmma_desc(bs + k), 1);
  xt_wgmma_commit();
  xt_wgmma_wait<0>();
#pragma unroll
  for (uint32_t i = 0; i < 32; i++) {
    Cell cell = cell_of(i % 4);
    d[base + (row0 + cell.p) * 64 + i / 4 * 8 + cell.q] = v[i];
  }
}
XT_EXPORT(tensor_core_wgmma)
