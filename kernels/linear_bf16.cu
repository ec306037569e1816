// linear_bf16      y[n][o] = dot(x[n], w[o]) (+ bias[o]) (h[n][o] + that); f32 or rounded to bf16     x [N, in], w [out, in]
// linear_dx_bf16   dx[n][k] = start + sum over a group's weights of dot over o of dy[n][o] w[o][k]    dy [N, out], w [out, in]
// linear_dw_bf16   dw[o][k] = dw[o][k] + rowsum dy[r][o] x[r][k]                                      dy [R, out], x [R, in]
// Launch: a block a tile of TILE x TILE outputs (TILE = 128: 8 warps of 64 x 32, 64: 4 warps of 32 x 32),
//   grid (P / TILE, Q / TILE), dynamic shared memory of tile_bytes (gpu/linear.rs): four stages of 32 k.
// Order: a chunk is mma.sync steps of 16 k, rising, into an accumulator from zero, its last one padded with
//   zeros; then y = y + chunk in f32. P (weights; in dw the inputs) is the 16-row operand in every shape,
//   so tiles, grids and batches change no bit. CPU twin: none; gate: gpu/linear/tests.rs.
// Cost: 2 P Q K flops. A tile of 128 reads 8 TILE / 2 bytes a k: 64 flops a byte of L2; a warp's step of
//   16 k is 16 mma and 6 ldmatrix. Two accumulators of 64 registers: one block an SM (8 warps); the
//   addition of chunks is one FADD an output each 16 mma steps, 3 % of issue slots. Outputs leave through
//   shared memory, 16 bytes a thread (straight from fragments they are 64 stores of 4).
#include "linear_bf16.cuh"

template <int TILE>
XT_DEV void linear_tile(const bf16* x, const bf16* w, const Epilogue& out, const NormEpilogue& norm, uint32_t rows,
                        uint32_t outs, uint32_t width) {
  Tile tile = tile_of_block();
  product_bf16<TILE, true, true>(tile, Operand<bf16>{w, w, w, outs}, Operand<bf16>{x, x, x, rows},
                                 UniformChunks{width, 0, 0}, out);
  norm_epilogue(norm, out.y, outs, tile.q, gridDim.x, tile.q * TILE, min(rows, (tile.q + 1) * TILE));
}

XT_KERNEL(linear_bf16_128, 256)(const bf16* x, const bf16* w, const float* bias, const float* h, float* y,
                                bf16* y_bf16, uint32_t rows, uint32_t outs, uint32_t width, const float* gain,
                                float eps, float* n, bf16* n_bf16, uint32_t* counters) {
  linear_tile<128>(x, w, {nullptr, bias, h, y, y_bf16}, {gain, eps, n, n_bf16, counters}, rows, outs, width);
}
XT_EXPORT(linear_bf16_128)

XT_KERNEL(linear_bf16_64, 128)(const bf16* x, const bf16* w, const float* bias, const float* h, float* y,
                               bf16* y_bf16, uint32_t rows, uint32_t outs, uint32_t width, const float* gain,
                               float eps, float* n, bf16* n_bf16, uint32_t* counters) {
  linear_tile<64>(x, w, {nullptr, bias, h, y, y_bf16}, {gain, eps, n, n_bf16, counters}, rows, outs, width);
}
XT_EXPORT(linear_bf16_64)

// A group's weights: up to three, absent ones of 0 outputs. start: null, or dx itself.
XT_KERNEL(linear_dx_bf16_128, 256)(const bf16* dy0, const bf16* dy1, const bf16* dy2, const bf16* w0, const bf16* w1,
                                   const bf16* w2, uint32_t outs0, uint32_t outs1, uint32_t outs2, const float* init,
                                   float* dx, uint32_t rows, uint32_t width) {
  product_bf16<128, false, true>(tile_of_block(), Operand<bf16>{w0, w1, w2, width},
                                 Operand<bf16>{dy0, dy1, dy2, rows}, UniformChunks{outs0, outs1, outs2},
                                 Epilogue{init, nullptr, nullptr, dx, nullptr});
}
XT_EXPORT(linear_dx_bf16_128)

XT_KERNEL(linear_dx_bf16_64, 128)(const bf16* dy0, const bf16* dy1, const bf16* dy2, const bf16* w0, const bf16* w1,
                                  const bf16* w2, uint32_t outs0, uint32_t outs1, uint32_t outs2, const float* init,
                                  float* dx, uint32_t rows, uint32_t width) {
  product_bf16<64, false, true>(tile_of_block(), Operand<bf16>{w0, w1, w2, width}, Operand<bf16>{dy0, dy1, dy2, rows},
                                UniformChunks{outs0, outs1, outs2}, Epilogue{init, nullptr, nullptr, dx, nullptr});
}
XT_EXPORT(linear_dx_bf16_64)

// bounds: chunks + 1 rows.
XT_KERNEL(linear_dw_bf16_128, 256)(float* dw, const bf16* dy, const bf16* x, const uint32_t* bounds, uint32_t chunks,
                                   uint32_t outs, uint32_t width) {
  product_bf16<128, false, false>(tile_of_block(), Operand<bf16>{x, x, x, width}, Operand<bf16>{dy, dy, dy, outs},
                                  RowChunks{bounds, chunks}, Epilogue{dw, nullptr, nullptr, dw, nullptr});
}
XT_EXPORT(linear_dw_bf16_128)

XT_KERNEL(linear_dw_bf16_64, 128)(float* dw, const bf16* dy, const bf16* x, const uint32_t* bounds, uint32_t chunks,
                                  uint32_t outs, uint32_t width) {
  product_bf16<64, false, false>(tile_of_block(), Operand<bf16>{x, x, x, width}, Operand<bf16>{dy, dy, dy, outs},
                                 RowChunks{bounds, chunks}, Epilogue{dw, nullptr, nullptr, dw, nullptr});
}
XT_EXPORT(linear_dw_bf16_64)
