// linear_few_bf16  linear_bf16 for few rows                            x [N, in], w [out, in]
// Launch: 16 outputs and 8 T rows a block, T = 1, 2 or 4, grid (N / (8 T), out / 16), so that blocks of the
//   same weights run together; a warp a chunk of 256 k, as many at a time as gpu/linear.rs gives 96 KiB of
//   dynamic shared memory to, 8 at most.
// Order: as linear_bf16, weights as the 16-row operand, rows that are not there zero; chunks run beside
//   each other and are added in order. CPU twin: none; gate: gpu/linear/tests.rs.
// Cost: memory. A block's weights, 8 KiB a chunk, are in flight at once: 24 KiB at in = 768, 64 at 2048 (one
//   row), so that three blocks an SM cover the latency (22 KB). 16 mma a warp follow, one after another:
//   0.3 us. One row's share of the shared memory is 0.5 KiB a warp.
#include "linear_skinny_bf16.cuh"

XT_KERNEL(linear_skinny_bf16_8, 256)(const bf16* x, const bf16* w, const float* bias, const float* h, float* y,
                                     bf16* y_bf16, uint32_t rows, uint32_t outs, uint32_t width, const float* gain,
                                     float eps, float* n, bf16* n_bf16, uint32_t* counters) {
  skinny_bf16<1>(PlainRows{x}, PlainWeights{w, {nullptr, bias, h, y, y_bf16}, blockIdx.y * 16, outs}, rows, width);
  norm_epilogue({gain, eps, n, n_bf16, counters}, y, outs, blockIdx.x, gridDim.y, blockIdx.x * 8,
                min(rows, (blockIdx.x + 1) * 8));
}
XT_EXPORT(linear_skinny_bf16_8)

XT_KERNEL(linear_skinny_bf16_16, 256)(const bf16* x, const bf16* w, const float* bias, const float* h, float* y,
                                      bf16* y_bf16, uint32_t rows, uint32_t outs, uint32_t width, const float* gain,
                                      float eps, float* n, bf16* n_bf16, uint32_t* counters) {
  skinny_bf16<2>(PlainRows{x}, PlainWeights{w, {nullptr, bias, h, y, y_bf16}, blockIdx.y * 16, outs}, rows, width);
  norm_epilogue({gain, eps, n, n_bf16, counters}, y, outs, blockIdx.x, gridDim.y, blockIdx.x * 16,
                min(rows, (blockIdx.x + 1) * 16));
}
XT_EXPORT(linear_skinny_bf16_16)

XT_KERNEL(linear_skinny_bf16_32, 128)(const bf16* x, const bf16* w, const float* bias, const float* h, float* y,
                                      bf16* y_bf16, uint32_t rows, uint32_t outs, uint32_t width, const float* gain,
                                      float eps, float* n, bf16* n_bf16, uint32_t* counters) {
  skinny_bf16<4>(PlainRows{x}, PlainWeights{w, {nullptr, bias, h, y, y_bf16}, blockIdx.y * 16, outs}, rows, width);
  norm_epilogue({gain, eps, n, n_bf16, counters}, y, outs, blockIdx.x, gridDim.y, blockIdx.x * 32,
                min(rows, (blockIdx.x + 1) * 32));
}
XT_EXPORT(linear_skinny_bf16_32)
