// linear_skinny_bf16   linear_bf16 for few rows (GEMV-like)            x [N, in], w [out, in]
// Launch: grid (N / (8 T), out / 16, G), T = 1, 2 or 4: 16 outputs x 8 T rows per block, so that blocks with the same
//   weights run together. One warp per chunk of 256 k, up to 8, limited by 96 KiB of dynamic shared memory; at least four
//   warps (gpu/linear.rs). If the chunks of a tile are more, and fewer than 132 blocks have outputs, G of them share the
//   chunks, through `parts` and one counter of `tiles` per tile.
// Order: as linear_bf16: the weights are the 16-row A operand; the results of absent rows are not stored; chunks are
//   computed in parallel and added in ascending order. CPU twin: none; gate: gpu/linear/tests.rs.
// Cost: memory. All weights of a block, 8 KiB per chunk, are in flight at once: 24 KiB at in = 768, 64 at 2048 (one
//   row). Each row takes 0.5 KiB of shared memory per warp. A launch of few rows waits for round trips: rows and
//   residuals are loaded before the weights, and all sums of chunks before the first is added.
#include "linear_skinny_bf16.cuh"

#define LINEAR_SKINNY(name, threads, T)                                                                              \
  XT_KERNEL(name, threads)(const bf16* x, const bf16* w, const float* bias, const float* h, float* y, bf16* y_bf16,  \
                           uint32_t rows, uint32_t outs, uint32_t width, float* parts, uint32_t* tiles,              \
                           uint32_t multipliers) {                                                                   \
    const PlainWeights weights = {w, {nullptr, bias, h, y, y_bf16}, blockIdx.y * 16, outs};                          \
    prefetch_weights(weights, width);                                                                                \
    xt_grid_dependency_sync();                                                                                       \
    skinny_bf16<T>(PlainRows{x}, weights, rows, width, {parts, tiles, multipliers});                                 \
  }                                                                                                                  \
  XT_EXPORT(name)
LINEAR_SKINNY(linear_skinny_bf16_8, 256, 1)
LINEAR_SKINNY(linear_skinny_bf16_16, 256, 2)
LINEAR_SKINNY(linear_skinny_bf16_32, 128, 4)
#undef LINEAR_SKINNY
