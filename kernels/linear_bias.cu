// linear_db_f32    db[o] = init[o] + rowsum fma(dy[r][o], 1, .)          dy [R, out]
// Launch: 32 columns per block, 8 warps. Each warp sums one chunk of at most 256 rows; then the first warp adds the
//   chunks in ascending order.
// Cost: R out / 132 SMs loads of 4 bytes, coalesced into 128-byte lines: bound by memory. CPU twin: cpu/rowsum.rs.
#include "xt.cuh"

XT_KERNEL(linear_db_f32, 256)(const float* init, float* db, const float* dy, const uint32_t* bounds, uint32_t chunks,
                              uint32_t outs) {
  xt_grid_dependency_sync();
  XT_SHARED2(float, part, 8, 32);
  uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, o = blockIdx.x * 32 + lane;
  float total = warp == 0 && o < outs && init ? init[o] : 0.0f;
  for (uint32_t first = 0; first < chunks; first += 8) {
    uint32_t i = first + warp;
    float c = 0.0f;
    if (i < chunks && o < outs) {
      uint32_t end = bounds[i + 1];
#pragma unroll 8
      for (uint32_t r = bounds[i]; r < end; r++) c = fmaf(dy[(size_t)r * outs + o], 1.0f, c);
    }
    part[warp][lane] = c;
    __syncthreads();
    if (warp == 0)
      for (uint32_t j = 0; j < min(8u, chunks - first); j++) total = total + part[j][lane];
    if (!XT_FAULT(ChunkSumsNotAwaited)) __syncthreads();
  }
  if (warp == 0 && o < outs) db[o] = total;
}
XT_EXPORT(linear_db_f32)
