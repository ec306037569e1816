// linear_few_f32   linear_f32 for few rows                             x [N, in], w [out, in]
// Launch: 8 outputs and 16 rows a block of 128 threads, grid (out / 8, N / 16); dynamic shared memory for
//   2048 k at most (gpu/linear.rs). A thread takes the chain of one (output, chunk of 256 k, R rows);
//   chunks run beside each other and are added in order. CPU twin: cpu/gemm.
// Cost: memory. The weights of 8 outputs, up to 2048 k of each, are in flight at once (64 KiB, three blocks
//   an SM; 24 KiB at in = 768: eight); 22 KB an SM in flight cover the latency. A row waits for one chain
//   of 256 fma (0.55 us); rows come from L1.
#include "linear_skinny_f32.cuh"

XT_KERNEL(linear_gemv_f32, 128)(const float* x, const float* w, const float* bias, const float* h, float* y,
                                bf16* y_bf16, uint32_t rows, uint32_t outs, uint32_t width, const float* gain,
                                float eps, float* n, bf16* n_bf16, uint32_t* counters) {
  skinny_f32<1>(PlainRowsF32{x}, PlainWeightsF32{w, {nullptr, bias, h, y, y_bf16}, blockIdx.x * 8, outs}, rows,
                width);
  norm_epilogue({gain, eps, n, n_bf16, counters}, y, outs, blockIdx.y, gridDim.x, blockIdx.y * 16,
                min(rows, (blockIdx.y + 1) * 16));
}
XT_EXPORT(linear_gemv_f32)

XT_KERNEL_FOR(linear_skinny_f32, 128, 4)(const float* x, const float* w, const float* bias, const float* h, float* y,
                                         bf16* y_bf16, uint32_t rows, uint32_t outs, uint32_t width,
                                         const float* gain, float eps, float* n, bf16* n_bf16, uint32_t* counters) {
  skinny_f32<4>(PlainRowsF32{x}, PlainWeightsF32{w, {nullptr, bias, h, y, y_bf16}, blockIdx.x * 8, outs}, rows,
                width);
  norm_epilogue({gain, eps, n, n_bf16, counters}, y, outs, blockIdx.y, gridDim.x, blockIdx.y * 16,
                min(rows, (blockIdx.y + 1) * 16));
}
XT_EXPORT(linear_skinny_f32)
