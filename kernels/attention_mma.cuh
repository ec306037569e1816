// Shared by the bf16 attention kernels: rows in shared memory and fragments of mma.sync m16n8k16.
// A row in shared memory holds hd values, zero padding to a multiple of 16, and 8 more values, so that the eight rows
// of one ldmatrix fall into different banks. Accumulator fragment (16 x 8): lane l owns rows l / 4 and l / 4 + 8,
// columns 2 (l % 4) + e.
#pragma once
#include "attention.cuh"

XT_DEV uint32_t mma_ld(uint32_t hd) { return (hd + 15) / 16 * 16 + 8; }

// to[n][c] = row(n)[c] for n < rows, c < hd, by cp.async of THREADS threads; the caller commits and waits. Rows with
// row(n) == nullptr are zero-filled. `any` is a valid global address for the predicated-off copies. With a constant hd the
// loop has no division and constant distances between the rows of a thread.
template <uint32_t THREADS, class Row>
XT_DEV void copy_rows_async(bf16* to, uint32_t rows, uint32_t hd, const bf16* any, Row row) {
  const uint32_t parts = hd / 8, ld = mma_ld(hd), copies = rows * parts;
#pragma unroll
  for (uint32_t first = 0; first < copies; first += THREADS) {
    uint32_t i = first + threadIdx.x, n = i / parts, c = i % parts * 8;
    if (first + THREADS > copies && i >= copies) break;
    const bf16* from = row(n);
    xt_cp_async16(to + n * ld + c, from ? from + c : any, from != nullptr);
  }
}

// Zero-fills columns hd .. next multiple of 16, which no copy writes.
XT_DEV void zero_padding(bf16* to, uint32_t rows, uint32_t hd) {
  if (hd % 16 == 0) return;
  for (uint32_t n = threadIdx.x; n < rows; n += blockDim.x)
    *(uint4*)(to + n * mma_ld(hd) + hd) = make_uint4(0, 0, 0, 0);
}

// A fragment (16 x 16): 16 rows of x, columns 16 step .. 16 step + 15.
XT_DEV void load_fragment_a(uint32_t a[4], const bf16* x, uint32_t ld, uint32_t step) {
  uint32_t lane = threadIdx.x % 32;
  xt_ldmatrix_x4(a, x + lane % 16 * ld + step * 16 + lane / 16 * 8);
}
// Two B fragments (16 x 8): x[n][k] for n = 0 .. 7 and n = 8 .. 15, k = 16 step .. 16 step + 15.
XT_DEV void load_fragments_b(uint32_t b[4], const bf16* x, uint32_t ld, uint32_t step) {
  uint32_t lane = threadIdx.x % 32;
  xt_ldmatrix_x4(b, x + (lane / 16 * 8 + lane % 8) * ld + step * 16 + lane / 8 % 2 * 8);
}
// One B fragment (16 x 8) of a transposed operand: x[k][n] for k = 16 step .. + 15, n = column .. + 7.
XT_DEV void load_fragment_b_trans(uint32_t b[2], const bf16* x, uint32_t ld, uint32_t step, uint32_t column) {
  xt_ldmatrix_x2_trans(b, x + (step * 16 + threadIdx.x % 16) * ld + column);
}

// A fragment (16 x 16) made of accumulator columns 16 step .. 16 step + 15, rounded to bf16.
XT_DEV void pack_fragment_a(uint32_t a[4], const float s[][4], uint32_t step) {
  a[0] = xt_pack_bf16(s[2 * step][0], s[2 * step][1]);
  a[1] = xt_pack_bf16(s[2 * step][2], s[2 * step][3]);
  a[2] = xt_pack_bf16(s[2 * step + 1][0], s[2 * step + 1][1]);
  a[3] = xt_pack_bf16(s[2 * step + 1][2], s[2 * step + 1][3]);
}

// Maximum over the 4 lanes that share an accumulator row.
XT_DEV float quad_max(float v) {
  v = max_f32(v, __shfl_xor_sync(0xffffffffu, v, 2));
  return max_f32(v, __shfl_xor_sync(0xffffffffu, v, 1));
}
// sum32 of a row's 64 entries; p[n][half + e] holds entry 8 n + 2 (lane % 4) + e.
XT_DEV float quad_sum(const float p[8][4], int half) {
  float v[2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    int at = half + e;
    v[e] = ((p[0][at] + p[4][at]) + (p[2][at] + p[6][at])) + ((p[1][at] + p[5][at]) + (p[3][at] + p[7][at]));
    v[e] = v[e] + __shfl_xor_sync(0xffffffffu, v[e], 2);
    v[e] = v[e] + __shfl_xor_sync(0xffffffffu, v[e], 1);
  }
  return (v[0] + v[1]) + 0.0f;
}
