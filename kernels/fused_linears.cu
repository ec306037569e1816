// linears          y_i = x w_iᵀ + b_i for up to three matrices           x [N, in], w_i [out_i, in] -> y_i [N, out_i]
// swiglu           y = silu(x gateᵀ + b) * (x upᵀ + c)                    x [N, in], gate, up [out, in] -> y [N, out]
//                  The tile kernels also store both products, unless their addresses are null.
// Launch: as linear, with the same tiles. linears: the blocks of one matrix follow those of the previous one; an
//   absent matrix has no outputs. swiglu: half of a block's weight rows belong to the gate, half to up.
// Order: as linear; in bf16 both products are rounded before silu_mul. CPU twin: linear, silu_mul.
// Cost: as linear; one launch instead of three, and the matrices share the last wave of blocks.
#include "linear_bf16.cuh"
#include "linear_f32.cuh"
#include "linear_matrices.cuh"
#include "linear_skinny_bf16.cuh"
#include "linear_skinny_f32.cuh"
#include "swiglu_weights.cuh"

template <int TILE, class T> struct MatrixPart {
  Tile tile;
  Operand<T> lines;
  Epilogue out;
};

// The output tile of this block among the tiles of all matrices, its operands and its epilogue.
template <int TILE, class T> XT_DEV MatrixPart<TILE, T> matrix_part(const Matrices<T>& w) {
  Tile tile = tile_of_block();
  MatrixTile t = matrix_tile(w, tile.p, TILE);
  const T* m = matrix(w, t.part);
  Epilogue out = {nullptr, bias_of(w, t.part), nullptr, nullptr, nullptr};
  set_output(out, output_of(w, t.part));
  return {{t.o0 / TILE, tile.q}, {m, m, m, outs_of(w, t.part)}, out};
}

#define MATRICES(T)                                                                                                  \
  const T *w0, const T *w1, const T *w2, const float *b0, const float *b1, const float *b2, T *y0, T *y1, T *y2,     \
      uint32_t rows, uint32_t outs0, uint32_t outs1, uint32_t outs2, uint32_t width
#define MATRICES_ARG(T)                                                                                              \
  Matrices<T> { w0, w1, w2, b0, b1, b2, y0, y1, y2, outs0, outs1, outs2 }
#define GATE_UP(T)                                                                                                   \
  const T *gate, const T *up, const float *gate_bias, const float *up_bias, T *y, uint32_t rows, uint32_t outs,      \
      uint32_t width

#define TILE_KERNELS(T, type, side, threads)                                                                         \
  XT_KERNEL(linears_##type##_##side, threads)(const T* x, MATRICES(T)) {                                             \
    xt_grid_dependency_sync();                                                                                       \
    MatrixPart<side, T> part = matrix_part<side, T>(MATRICES_ARG(T));                                                \
    product_##type<side, true, true>(part.tile, part.lines, Operand<T>{x, x, x, rows}, UniformChunks{width, 0, 0},   \
                                     part.out);                                                                      \
  }                                                                                                                  \
  XT_EXPORT(linears_##type##_##side)                                                                                 \
  XT_KERNEL(swiglu_##type##_##side, threads)(const T* x, GATE_UP(T), T* kept_gate, T* kept_up) {                     \
    xt_grid_dependency_sync();                                                                                       \
    product_##type<side, true, true>(tile_of_block(), GateUp<T>{gate, up, outs}, Operand<T>{x, x, x, rows},          \
                                     UniformChunks{width, 0, 0},                                                     \
                                     SwiGluEpilogue<T>{gate_bias, up_bias, y, kept_gate, kept_up});                  \
  }                                                                                                                  \
  XT_EXPORT(swiglu_##type##_##side)
TILE_KERNELS(bf16, bf16, 128, 256)
TILE_KERNELS(bf16, bf16, 64, 128)
TILE_KERNELS(float, f32, 128, 256)
TILE_KERNELS(float, f32, 64, 64)
#undef TILE_KERNELS

#define SKINNY_KERNELS_BF16(name, threads, T)                                                                        \
  XT_KERNEL(linears_##name, threads)(const bf16* x, MATRICES(bf16), float* parts, uint32_t* tiles,                   \
                                     uint32_t multipliers) {                                                         \
    const Matrices<bf16> weights = MATRICES_ARG(bf16);                                                               \
    prefetch_weights(weights, width);                                                                                \
    xt_grid_dependency_sync();                                                                                       \
    skinny_bf16<T>(PlainRows{x}, weights, rows, width, {parts, tiles, multipliers});                                 \
  }                                                                                                                  \
  XT_EXPORT(linears_##name)                                                                                          \
  XT_KERNEL(swiglu_##name, threads)(const bf16* x, GATE_UP(bf16), float* parts, uint32_t* tiles,                     \
                                    uint32_t multipliers) {                                                          \
    const SwiGluWeights<2> weights = {gate, up, {gate_bias, up_bias, y, nullptr, nullptr}, outs};                    \
    prefetch_weights(weights, width);                                                                                \
    xt_grid_dependency_sync();                                                                                       \
    skinny_bf16<T>(PlainRows{x}, weights, rows, width, {parts, tiles, multipliers});                                 \
  }                                                                                                                  \
  XT_EXPORT(swiglu_##name)
SKINNY_KERNELS_BF16(skinny_bf16_16, 256, 2)
SKINNY_KERNELS_BF16(skinny_bf16_32, 128, 4)
#undef SKINNY_KERNELS_BF16

XT_KERNEL(linears_skinny_f32, 128)(const float* x, MATRICES(float)) {
  xt_grid_dependency_sync();
  skinny_f32<4>(PlainRowsF32{x}, MATRICES_ARG(float), rows, width);
}
XT_EXPORT(linears_skinny_f32)

XT_KERNEL(swiglu_skinny_f32, 128)(const float* x, GATE_UP(float)) {
  xt_grid_dependency_sync();
  skinny_f32<4>(PlainRowsF32{x},
                SwiGluWeightsF32{gate, up, {gate_bias, up_bias, y, nullptr, nullptr}, blockIdx.x * 4, outs}, rows,
                width);
}
XT_EXPORT(swiglu_skinny_f32)
#undef MATRICES
#undef MATRICES_ARG
#undef GATE_UP
