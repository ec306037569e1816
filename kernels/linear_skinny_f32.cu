// linear_skinny_f32, linear_gemv_f32   linear_f32 for few rows, and for one row           x [N, in], w [out, in]
// Launch: grid (out / 8, N / 16), 128 threads: 8 outputs x 16 rows per block; dynamic shared memory for at most 2048
//   k (gpu/linear.rs). Each thread runs the fma chain of one (output, chunk of 256 k, R rows).
// Order: as linear_f32; chunks are computed in parallel and added in ascending order. CPU twin: cpu/gemm.
// Cost: memory. The weights of 8 outputs, up to 2048 k of each, are in flight at once (64 KiB, three blocks per SM;
//   24 KiB at in = 768: eight); 22 KB in flight per SM cover the latency. The critical path of a row is one chain of
//   256 fma (0.55 us); rows are read from L1.
#include "linear_skinny_f32.cuh"

XT_KERNEL(linear_gemv_f32, 128)(const float* x, const float* w, const float* bias, const float* h, float* y,
                                bf16* y_bf16, uint32_t rows, uint32_t outs, uint32_t width) {
  xt_grid_dependency_sync();
  skinny_f32<1>(PlainRowsF32{x}, PlainWeightsF32{w, {nullptr, bias, h, y, y_bf16}, blockIdx.x * 8, outs}, rows,
                width);
}
XT_EXPORT(linear_gemv_f32)

XT_KERNEL_FOR(linear_skinny_f32, 128, 4)(const float* x, const float* w, const float* bias, const float* h, float* y,
                                         bf16* y_bf16, uint32_t rows, uint32_t outs, uint32_t width) {
  xt_grid_dependency_sync();
  skinny_f32<4>(PlainRowsF32{x}, PlainWeightsF32{w, {nullptr, bias, h, y, y_bf16}, blockIdx.x * 8, outs}, rows,
                width);
}
XT_EXPORT(linear_skinny_f32)
