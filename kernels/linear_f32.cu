// linear_f32       y[n][o] = dot(x[n], w[o]) (+ bias[o]) (then h[n][o] + that), f32 or rounded to bf16
//                  x [N, in], w [out, in] -> y [N, out]
// linear_dx_f32    dx[n][k] = init + sum over a group's weights of (dot over o of dy[n][o] w[o][k])
//                  dy [N, out], w [out, in] -> dx [N, in]
// linear_dw_f32    linear_dw.cu
// Launch: grid (P / TILE, Q / TILE), one block per TILE x TILE outputs (TILE = 128: 256 threads; TILE = 64: 64
//   threads), 8 x 8 outputs per thread. No dynamic shared memory.
// Order: linear_chunks.cuh; chunk and total stay in registers, so tiles, grids and batch sizes change no bit.
// Cost: 2 P Q K flop on FFMA (67 TFLOP/s on an H200). A tile reads 8 TILE bytes per k: 32 flop per byte of L2 at 128
//   (2.1 TB/s at peak), 16 at 64. A step of 8 k is 512 FFMA per thread between barriers, with 32 shared loads of 16
//   bytes; the operands of the next step are prefetched meanwhile. Two accumulators of 64 registers: one block of 256
//   threads per SM (8 warps of 64 independent chains), or five of 64.
// CPU twin: cpu/gemm.
#include "linear_f32.cuh"

template <int TILE>
XT_DEV void linear_tile(const float* x, const float* w, const Epilogue& out, uint32_t rows, uint32_t outs,
                        uint32_t width) {
  product_f32<TILE, true, true>(tile_of_block(), Operand<float>{w, w, w, outs}, Operand<float>{x, x, x, rows},
                                UniformChunks{width, 0, 0}, out);
}

XT_KERNEL(linear_f32_128, 256)(const float* x, const float* w, const float* bias, const float* h, float* y,
                               bf16* y_bf16, uint32_t rows, uint32_t outs, uint32_t width) {
  xt_grid_dependency_sync();
  linear_tile<128>(x, w, {nullptr, bias, h, y, y_bf16}, rows, outs, width);
}
XT_EXPORT(linear_f32_128)

XT_KERNEL(linear_f32_64, 64)(const float* x, const float* w, const float* bias, const float* h, float* y,
                             bf16* y_bf16, uint32_t rows, uint32_t outs, uint32_t width) {
  xt_grid_dependency_sync();
  linear_tile<64>(x, w, {nullptr, bias, h, y, y_bf16}, rows, outs, width);
}
XT_EXPORT(linear_f32_64)

// A group of up to three weights; an absent one has 0 outputs. init: null (start from zero) or dx (accumulate).
XT_KERNEL(linear_dx_f32_128, 256)(const float* dy0, const float* dy1, const float* dy2, const float* w0,
                                  const float* w1, const float* w2, uint32_t outs0, uint32_t outs1, uint32_t outs2,
                                  const float* init, float* dx, uint32_t rows, uint32_t width) {
  xt_grid_dependency_sync();
  product_f32<128, false, true>(tile_of_block(), Operand<float>{w0, w1, w2, width},
                                Operand<float>{dy0, dy1, dy2, rows}, UniformChunks{outs0, outs1, outs2},
                                Epilogue{init, nullptr, nullptr, dx, nullptr});
}
XT_EXPORT(linear_dx_f32_128)

XT_KERNEL(linear_dx_f32_64, 64)(const float* dy0, const float* dy1, const float* dy2, const float* w0,
                                const float* w1, const float* w2, uint32_t outs0, uint32_t outs1, uint32_t outs2,
                                const float* init, float* dx, uint32_t rows, uint32_t width) {
  xt_grid_dependency_sync();
  product_f32<64, false, true>(tile_of_block(), Operand<float>{w0, w1, w2, width},
                               Operand<float>{dy0, dy1, dy2, rows}, UniformChunks{outs0, outs1, outs2},
                               Epilogue{init, nullptr, nullptr, dx, nullptr});
}
XT_EXPORT(linear_dx_f32_64)
