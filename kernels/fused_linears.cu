// linears          y_i = x w_iᵀ + b_i, up to three of them                     x [N, in], w_i [out_i, in] -> y_i [N, out_i]
// swiglu           y = silu(x gateᵀ + b) * (x upᵀ + c)                         x [N, in], gate, up [out, in] -> y [N, out]
// Launch: as linear, by the same tiles; the blocks of one matrix after those of another. Half of a block's lines are of
//   the gate, half of up. An absent matrix has no outputs.
// Order: that of linear; in bf16 both products are rounded before silu_mul. CPU twin: linear, silu_mul.
// Cost: that of linear; one launch for three, and their blocks share the last round.
#include "linear_matrices.cuh"

template <int TILE, class T>
struct PartOf { Tile tile; Lines<T> lines; Output out; };

// The tile of a block among those of all matrices, and what it reads and writes.
template <int TILE, class T>
XT_DEV PartOf<TILE, T> part_of_block(const Matrices<T>& w) {
  Tile tile = tile_of_block();
  Turn3 t = turn_of(w, tile.p, TILE);
  const T* m = matrix(w, t.part);
  Output out = {nullptr, bias_of(w, t.part), nullptr, nullptr, nullptr};
  leave_to(out, output_of(w, t.part));
  return {{t.o0 / TILE, tile.q}, {m, m, m, outs_of(w, t.part)}, out};
}

#define MATRICES(T)                                                                                                          \
  const T *w0, const T *w1, const T *w2, const float *b0, const float *b1, const float *b2, T *y0, T *y1, T *y2, uint32_t rows, \
    uint32_t outs0, uint32_t outs1, uint32_t outs2, uint32_t width
#define THE_MATRICES(T) Matrices<T>{w0, w1, w2, b0, b1, b2, y0, y1, y2, outs0, outs1, outs2}
#define GATE_UP(T) const T *gate, const T *up, const float *gate_bias, const float *up_bias, T *y, uint32_t rows, uint32_t outs, uint32_t width

#define OF_TILES(T, type, side, threads)                                                                                     \
  XT_KERNEL(linears_##type##_##side, threads)(const T* x, MATRICES(T)) {                                                     \
    PartOf<side, T> part = part_of_block<side, T>(THE_MATRICES(T));                                                             \
    product_##type<side, true, true>(part.tile, part.lines, Lines<T>{x, x, x, rows}, Fixed{width, 0, 0}, part.out);          \
  }                                                                                                                          \
  XT_EXPORT(linears_##type##_##side)                                                                                         \
  XT_KERNEL(swiglu_##type##_##side, threads)(const T* x, GATE_UP(T)) {                                                       \
    product_##type<side, true, true>(tile_of_block(), GateUp<T>{gate, up, outs}, Lines<T>{x, x, x, rows}, Fixed{width, 0, 0}, \
                                     Gated<T>{gate_bias, up_bias, y});                                                       \
  }                                                                                                                          \
  XT_EXPORT(swiglu_##type##_##side)
OF_TILES(bf16, bf16, 128, 256)
OF_TILES(bf16, bf16, 64, 128)
OF_TILES(float, f32, 128, 256)
OF_TILES(float, f32, 64, 64)
#undef OF_TILES

#define OF_FEW(T, name, threads, few, rows_of, gated_weights)                                          \
  XT_KERNEL(linears_##name, threads)(const T* x, MATRICES(T)) { few(rows_of{x}, THE_MATRICES(T), rows, width); }               \
  XT_EXPORT(linears_##name)                                                                            \
  XT_KERNEL(swiglu_##name, threads)(const T* x, GATE_UP(T)) { few(rows_of{x}, gated_weights, rows, width); } \
  XT_EXPORT(swiglu_##name)
#define GATED_BF16 GatedWeights{gate, up, {gate_bias, up_bias, y}, outs}
OF_FEW(bf16, few_bf16_16, 256, few_rows_bf16<2>, PlainRows, GATED_BF16)
OF_FEW(bf16, few_bf16_32, 128, few_rows_bf16<4>, PlainRows, GATED_BF16)
#define GATED_F32 GatedWeightsF32{gate, up, {gate_bias, up_bias, y}, blockIdx.x * 4, outs}
OF_FEW(float, few_f32, 128, few_rows<4>, PlainRowsF32, GATED_F32)
#undef OF_FEW
#undef GATED_BF16
#undef GATED_F32
#undef MATRICES
#undef THE_MATRICES
#undef GATE_UP
