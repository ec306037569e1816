// norm_rope             y = rope(rms_norm(x, gain)) over each head           x [N, H, hd], gain [hd] -> y [N, H, hd]
// Launch: one warp per head, four heads per block. Order: sum32. CPU twin: cpu/rope.rs.
#include "norm_rotate.cuh"

template <class T>
XT_DEV void norm_rope(const T* x, const float* gain, const uint64_t* table, const uint32_t* pos, T* y, uint32_t pairs,
                      uint32_t heads, uint32_t hd, float eps) {
  XT_SHARED2(float, staging, 4, 256);
  uint32_t warp = threadIdx.x / 32, pair = blockIdx.x * 4 + warp;
  if (pair >= pairs) return;
  size_t at = (size_t)pair * hd;
  norm_rotate(x + at, gain, rope_row(table, pos[XT_FAULT(HeadsAtFirstPosition) ? 0 : pair / heads], hd), y + at, hd,
              eps, staging[warp], threadIdx.x % 32);
}

#define NORM_ROPE(name, T)                                                                                           \
  XT_KERNEL(name, 128)(const T* x, const float* gain, const uint64_t* table, const uint32_t* pos, T* y,              \
                       uint32_t pairs, uint32_t heads, uint32_t hd, float eps) {                                     \
    xt_grid_dependency_sync();                                                                                       \
    norm_rope(x, gain, table, pos, y, pairs, heads, hd, eps);                                                        \
  }                                                                                                                  \
  XT_EXPORT(name)
NORM_ROPE(norm_rope_f32, float)
NORM_ROPE(norm_rope_bf16, bf16)
#undef NORM_ROPE

// norm_rope_backward    e = dy rotated back; dx as rms_norm_backward of e; part[p][i] = chain over the pairs of chunk
//                       p: fma(e_i, x_i r, .) from +0
//                       x, dy [N, H, hd], gain [hd], chunk [P, 2] (first pair, end pair) -> dx [N, H, hd], part [P, hd]
// Launch: one block of 256 threads per chunk of at most 256 (row, head) pairs: eight warps, one pair each at a time.
//   The pairs of four rounds stay in dynamic shared memory (gpu/heads.rs), then one thread per column adds them to its
//   chain.
// Order: sum32; pairs in ascending order. hd is even, at most 256. CPU twin: cpu/rope.rs.
// Cost: x, dy and dx once.

// Pairs in shared memory: four rounds of eight warps.
const uint32_t STAGED_PAIRS = 32;

// Column i of dy, rotated back.
XT_DEV float rotated_back(const float* dy, const float* cos, uint32_t i, uint32_t half) {
  const float* sin = cos + half;
  return i < half ? fmaf(dy[i], cos[i], dy[i + half] * sin[i])
                  : fmaf(dy[i], cos[i - half], -(dy[i - half] * sin[i - half]));
}

// One pair by one warp: writes dx, and e and x r to shared memory.
template <class T, class O>
XT_DEV void norm_rope_backward_of(const T* x, const float* gain, const float* cos, const float* dy, O* dx,
                                  float* e_smem, float* h_smem, uint32_t hd, float eps, uint32_t lane) {
  float h[8], e[8], t = 0.0f;
  lane_load(h, x, hd, lane);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    uint32_t i = lane + 32 * k;
    e[k] = i < hd ? rotated_back(dy, cos, i, hd / 2) : 0.0f;
  }
  float r = inverse_rms(lane_sum_squares(h), hd, eps);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    uint32_t i = lane + 32 * k;
    h[k] = h[k] * r;
    if (i < hd) {
      e_smem[i] = e[k];
      h_smem[i] = h[k];
      e[k] = e[k] * gain[i];
    }
    t = fmaf(e[k], h[k], t);
  }
  t = sum32(t) / (float)hd;
#pragma unroll
  for (int k = 0; k < 8; k++) {
    uint32_t i = lane + 32 * k;
    if (i < hd) store(dx + i, fmaf(-h[k], t, e[k]) * r);
  }
}

template <class T, class O>
XT_DEV void norm_rope_backward(const T* x, const float* gain, const uint64_t* table, const uint32_t* pos,
                               const float* dy, O* dx, const uint32_t* chunk, float* part, uint32_t heads,
                               uint32_t hd, float eps) {
  XT_DYN_SHARED(float, e_smem);
  float *h_smem = e_smem + STAGED_PAIRS * hd, sum = 0.0f;
  const uint32_t first = chunk[2 * blockIdx.x], end = chunk[2 * blockIdx.x + 1];
  for (uint32_t at = first; at < end; at += STAGED_PAIRS) {
    const uint32_t staged = min(STAGED_PAIRS, end - at);
    for (uint32_t i = threadIdx.x / 32; i < staged; i += 8) {
      const size_t pair = at + i, from = pair * hd;
      const float* cos = rope_row(table, pos[pair / heads], hd);
      norm_rope_backward_of(x + from, gain, cos, dy + from, dx + from, e_smem + i * hd, h_smem + i * hd, hd, eps,
                            threadIdx.x % 32);
    }
    __syncthreads();
    const uint32_t used = staged - (XT_FAULT(LastPairOfChunkNotSummed) && at + staged == end);
    if (threadIdx.x < hd) {
#pragma unroll 8
      for (uint32_t i = 0; i < used; i++) sum = fmaf(e_smem[i * hd + threadIdx.x], h_smem[i * hd + threadIdx.x], sum);
    }
    if (!XT_FAULT(StagedPairsOverwritten)) __syncthreads();
  }
  if (threadIdx.x < hd) part[(size_t)blockIdx.x * hd + threadIdx.x] = sum;
}

#define NORM_ROPE_BACKWARD(name, T, O)                                                                               \
  XT_KERNEL_FOR(name, 256, 3)                                                                                        \
  (const T* x, const float* gain, const uint64_t* table, const uint32_t* pos, const float* dy, O* dx,                \
   const uint32_t* chunk, float* part, uint32_t heads, uint32_t hd, float eps) {                                     \
    xt_grid_dependency_sync();                                                                                       \
    norm_rope_backward(x, gain, table, pos, dy, dx, chunk, part, heads, hd, eps);                                    \
  }                                                                                                                  \
  XT_EXPORT(name)
NORM_ROPE_BACKWARD(norm_rope_backward_f32_f32, float, float)
NORM_ROPE_BACKWARD(norm_rope_backward_bf16_f32, bf16, float)
NORM_ROPE_BACKWARD(norm_rope_backward_bf16_bf16, bf16, bf16)
#undef NORM_ROPE_BACKWARD
