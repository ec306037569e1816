// linear_bf16      y[n][o] = dot(x[n], w[o]) (+ bias[o]) (then h[n][o] + that), f32 or rounded to bf16
//                  x [N, in], w [out, in] -> y [N, out]
// linear_dx_bf16   dx[n][k] = init + sum over a group's weights of (dot over o of dy[n][o] w[o][k]), f32 or rounded
//                  dy [N, out], w [out, in] -> dx [N, in]
// linear_dw_bf16   linear_dw.cu
// Launch: grid (P / TILE, Q / TILE), one block per TILE x TILE outputs (TILE = 128: 8 warps of 64 x 32 outputs; TILE
//   = 64: 4 warps of 32 x 32). Dynamic shared memory (gpu/linear.rs): a cp.async pipeline of four stages of 32 k.
// Order: a chunk of 256 k is a sequence of mma.sync k-steps of 16, ascending, into an accumulator that starts at
//   zero, the last one zero-padded; then y = y + chunk in f32. P (the weights; in dw the inputs) is the 16-row A
//   operand in every variant, so tiles, grids and batch sizes change no bit. CPU twin: none; gate:
//   gpu/linear/tests.rs.
// Cost: 2 P Q K flop. A tile of 128 reads 8 TILE / 2 bytes per k: 64 flop per byte of L2. One k-step of a warp is 16
//   mma and 6 ldmatrix. Two accumulators of 64 registers: one block per SM (8 warps). Adding the chunks is one FADD
//   per output every 16 k-steps, 3 % of issue slots. The epilogue goes through shared memory with 16-byte stores per
//   thread (directly from fragments it would be 64 stores of 4 bytes).
#include "linear_bf16.cuh"

template <int TILE>
XT_DEV void linear_tile(const bf16* x, const bf16* w, const Epilogue& out, uint32_t rows, uint32_t outs,
                        uint32_t width) {
  product_bf16<TILE, true, true>(tile_of_block(), Operand<bf16>{w, w, w, outs}, Operand<bf16>{x, x, x, rows},
                                 UniformChunks{width, 0, 0}, out);
}

XT_KERNEL(linear_bf16_128, 256)(const bf16* x, const bf16* w, const float* bias, const float* h, float* y,
                                bf16* y_bf16, uint32_t rows, uint32_t outs, uint32_t width) {
  xt_grid_dependency_sync();
  linear_tile<128>(x, w, {nullptr, bias, h, y, y_bf16}, rows, outs, width);
}
XT_EXPORT(linear_bf16_128)

XT_KERNEL(linear_bf16_64, 128)(const bf16* x, const bf16* w, const float* bias, const float* h, float* y,
                               bf16* y_bf16, uint32_t rows, uint32_t outs, uint32_t width) {
  xt_grid_dependency_sync();
  linear_tile<64>(x, w, {nullptr, bias, h, y, y_bf16}, rows, outs, width);
}
XT_EXPORT(linear_bf16_64)

// A group of up to three weights; an absent one has 0 outputs. init: null (start from zero) or dx (accumulate).
XT_KERNEL(linear_dx_bf16_128, 256)(const bf16* dy0, const bf16* dy1, const bf16* dy2, const bf16* w0, const bf16* w1,
                                   const bf16* w2, uint32_t outs0, uint32_t outs1, uint32_t outs2, const float* init,
                                   float* dx, bf16* dx_bf16, uint32_t rows, uint32_t width) {
  xt_grid_dependency_sync();
  product_bf16<128, false, true>(tile_of_block(), Operand<bf16>{w0, w1, w2, width},
                                 Operand<bf16>{dy0, dy1, dy2, rows}, UniformChunks{outs0, outs1, outs2},
                                 Epilogue{init, nullptr, nullptr, dx, dx_bf16});
}
XT_EXPORT(linear_dx_bf16_128)

XT_KERNEL(linear_dx_bf16_64, 128)(const bf16* dy0, const bf16* dy1, const bf16* dy2, const bf16* w0, const bf16* w1,
                                  const bf16* w2, uint32_t outs0, uint32_t outs1, uint32_t outs2, const float* init,
                                  float* dx, bf16* dx_bf16, uint32_t rows, uint32_t width) {
  xt_grid_dependency_sync();
  product_bf16<64, false, true>(tile_of_block(), Operand<bf16>{w0, w1, w2, width}, Operand<bf16>{dy0, dy1, dy2, rows},
                                UniformChunks{outs0, outs1, outs2}, Epilogue{init, nullptr, nullptr, dx, dx_bf16});
}
XT_EXPORT(linear_dx_bf16_64)
