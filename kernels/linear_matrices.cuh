// Several matrices in one launch: each block works on one of them.
#pragma once
#include "linear_chunks.cuh"
#include "linear_skinny_bf16.cuh"

// Up to three matrices that read the same x, their biases and outputs; an absent one has no outputs. The accessors
// below re-read the kernel parameters on each use, which takes fewer registers than a local copy.
template <class T> struct Matrices {
  static constexpr int TILES = 1;  // of 16 weight rows per block, in bf16
  const T *w0, *w1, *w2;
  const float *b0, *b1, *b2;
  T *y0, *y1, *y2;
  uint32_t outs0, outs1, outs2;
};

// The matrix of a block and its first output in that matrix, for blocks of `block_outs` outputs.
struct MatrixTile {
  uint32_t part, o0;
};

template <class T> XT_DEV MatrixTile matrix_tile(const Matrices<T>& w, uint32_t block, uint32_t block_outs) {
  uint32_t first = (w.outs0 + block_outs - 1) / block_outs, second = first + (w.outs1 + block_outs - 1) / block_outs;
  if (block < first) return {0, block * block_outs};
  if (block < second) return {1, (block - first) * block_outs};
  return {2, (block - second) * block_outs};
}
template <class T> XT_DEV const T* matrix(const Matrices<T>& w, uint32_t part) {
  return part == 0 ? w.w0 : part == 1 ? w.w1 : w.w2;
}
template <class T> XT_DEV uint32_t outs_of(const Matrices<T>& w, uint32_t part) {
  return part == 0 ? w.outs0 : part == 1 ? w.outs1 : w.outs2;
}
template <class T> XT_DEV const float* bias_of(const Matrices<T>& w, uint32_t part) {
  return part == 0 ? w.b0 : part == 1 ? w.b1 : w.b2;
}
template <class T> XT_DEV T* output_of(const Matrices<T>& w, uint32_t part) {
  return part == 0 ? w.y0 : part == 1 ? w.y1 : w.y2;
}

template <class T> XT_DEV void store_output(const Matrices<T>& w, uint32_t part, float y, uint32_t o, uint32_t n) {
  store(output_of(w, part) + (size_t)n * outs_of(w, part) + o,
        apply_epilogue({nullptr, bias_of(w, part), nullptr, nullptr, nullptr}, y, o, 0));
}

// ---- bf16: 16 outputs per block
XT_DEV const bf16* weight_line(const Matrices<bf16>& w, uint32_t line, uint32_t width) {
  MatrixTile t = matrix_tile(w, blockIdx.y, 16);
  return t.o0 + line < outs_of(w, t.part) ? matrix(w, t.part) + (size_t)(t.o0 + line) * width : nullptr;
}
XT_DEV void load_weights(const Matrices<bf16>& w, bf16* s, uint32_t width, uint32_t at) {
  MatrixTile t = matrix_tile(w, blockIdx.y, 16);
  load_chunk_rows<16>(s, matrix(w, t.part) + (size_t)t.o0 * width, outs_of(w, t.part) - t.o0, width, at);
}
template <int S> XT_DEV void load_residuals(float (&)[S], const Matrices<bf16>&, uint32_t, uint32_t, uint32_t) {}
template <int S>
XT_DEV void store_outputs(const Matrices<bf16>& w, const float* total, const float (&)[S], uint32_t values,
                          uint32_t n0, uint32_t rows) {
  MatrixTile t = matrix_tile(w, blockIdx.y, 16);
  for (uint32_t i = threadIdx.x; i < values; i += blockDim.x) {
    uint32_t o = t.o0 + i % 16, n = n0 + i / 16;
    if (o < outs_of(w, t.part) && n < rows) store_output(w, t.part, total[i], o, n);
  }
}

// ---- f32: 8 outputs per block
XT_DEV const float* weight_row(const Matrices<float>& w, uint32_t line, uint32_t width) {
  MatrixTile t = matrix_tile(w, blockIdx.x, 8);
  uint32_t o = t.o0 + line;
  return o < outs_of(w, t.part) ? matrix(w, t.part) + (size_t)o * width : nullptr;
}
XT_DEV void store_output_f32(const Matrices<float>& w, float y, uint32_t line, uint32_t n, uint32_t rows) {
  MatrixTile t = matrix_tile(w, blockIdx.x, 8);
  uint32_t o = t.o0 + line;
  if (o < outs_of(w, t.part) && n < rows) store_output(w, t.part, y, o, n);
}
