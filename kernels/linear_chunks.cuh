// Shared by the matrix products: operands, the chunks of the reduction in the order in which they are added,
// epilogues.
//
// A product is out[q][p] = init + sum over chunks of (sum over k in the chunk of P(p, k) Q(q, k)).
// p is the fast index of the output, q the slow one:
//   forward  P = w [out, in], Q = x [N, in];  dx  P = w transposed, Q = dy;  dw  P = x transposed, Q = dy transposed
#pragma once
#include "contract.cuh"
#include "in_flight.cuh"
#include "silu_mul.cuh"

// The indices [at, end) of k of one chunk of product `part`.
struct Chunk {
  uint32_t part, at, end;
};

// Chunks at 0, 256, ... of up to three products with these extents of k, accumulated into one running sum.
struct UniformChunks {
  uint32_t len0, len1, len2;
};

XT_DEV uint32_t k_extent(const UniformChunks& w, uint32_t part) {
  return part == 0 ? w.len0 : part == 1 ? w.len1 : w.len2;
}

XT_DEV Chunk first_chunk(const UniformChunks& w) { return {0, 0, min(256u, w.len0)}; }

// Advances to the chunk after c. Returns false after the last one.
XT_DEV bool next_chunk(const UniformChunks& w, Chunk& c) {
  if (c.end == k_extent(w, c.part)) {
    if (++c.part == 3 || k_extent(w, c.part) == 0) return false;
    c.end = 0;
  }
  c.at = c.end;
  c.end = min(c.at + 256u, k_extent(w, c.part));
  return true;
}

// Weight gradients reduce over rows. Chunk i is rows [bounds[i], bounds[i + 1]); chunks never span two samples.
struct RowChunks {
  const uint32_t* bounds;
  uint32_t chunks;
};

// Operands of a weight gradient are never K-major.
XT_DEV uint32_t k_extent(const RowChunks&, uint32_t) { return 0; }

XT_DEV Chunk first_chunk(const RowChunks& w) { return {0, w.bounds[0], w.bounds[1]}; }

XT_DEV bool next_chunk(const RowChunks& w, Chunk& c) {
  if (++c.part == w.chunks) return false;
  c.at = c.end;
  c.end = w.bounds[c.part + 1];
  return true;
}

// One operand with n rows, each a vector over k, for up to three products.
template <class T> struct Operand {
  const T *p0, *p1, *p2;
  uint32_t n;
};

// Row i of the tile that begins at row `first`; nullptr if out of range.
template <int TILE, class T>
XT_DEV const T* operand_row(const Operand<T>& l, const T* base, uint32_t first, uint32_t i, uint32_t len) {
  return first + i < l.n ? base + (size_t)(first + i) * len : nullptr;
}

// Gate and up [n, in] as one operand: the first half of a tile's rows belongs to the gate, the second half to up.
template <class T> struct GateUp {
  const T *gate, *up;
  uint32_t n;
};

template <int TILE, class T>
XT_DEV const T* operand_row(const GateUp<T>& l, const T*, uint32_t first, uint32_t i, uint32_t len) {
  uint32_t o = first / 2 + i % (TILE / 2);
  return o < l.n ? (i < TILE / 2 ? l.gate : l.up) + (size_t)o * len : nullptr;
}

// Base address of the operand for the product of chunk c.
template <class T> XT_DEV const T* operand_base(const UniformChunks&, const Operand<T>& l, const Chunk& c) {
  return c.part == 0 ? l.p0 : c.part == 1 ? l.p1 : l.p2;
}
template <class T> XT_DEV const T* operand_base(const UniformChunks&, const GateUp<T>& l, const Chunk&) {
  return l.gate;
}
template <class T> XT_DEV const T* operand_base(const RowChunks&, const Operand<T>& l, const Chunk&) { return l.p0; }

// Initial value and epilogue: y = residual h + (sum + bias). Null pointers: absent.
struct Epilogue {
  const float* init;  // initial value of the running sum
  const float* bias;  // [P], added to the sum
  const float* h;     // residual, added last: h + (sum + bias)
  float* y;
  bf16* y_bf16;  // if not null, written instead of y
};

XT_DEV void set_output(Epilogue& out, float* y) { out.y = y; }
XT_DEV void set_output(Epilogue& out, bf16* y) { out.y_bf16 = y; }

// A value of the residual stream.
XT_DEV float residual_of(float h) { return XT_FAULT(ResidualDenormalFlushed) && fabsf(h) < 0x1p-126f ? 0.0f : h; }

// h + (sum + bias), in f32.
XT_DEV float apply_epilogue(const Epilogue& out, float sum, uint32_t p, size_t at) {
  if (out.bias) sum = sum + out.bias[p];
  if (out.h) sum = residual_of(out.h[at]) + sum;
  return sum;
}

XT_DEV void store_output(const Epilogue& out, float sum, uint32_t p, size_t at) {
  sum = apply_epilogue(out, sum, p, at);
  if (out.y_bf16)
    store(out.y_bf16 + at, sum);
  else
    out.y[at] = sum;
}

// SwiGLU epilogue: y[o] = silu(gate + bias) (up + bias), with both operands rounded to T first.
template <class T> struct SwiGluEpilogue {
  static constexpr const float* init = nullptr;
  const float *gate_bias, *up_bias;
  T* y;
  T *gate, *up;  // the rounded operands are kept here; null: they are not
};

// The values of one output.
template <class T> struct SwiGlu {
  T y, gate, up;
};

// Epilogue of the gradient of y = silu(gate) up: the sum is dy.
template <class T> struct SwiGluGradientEpilogue {
  static constexpr const float* init = nullptr;
  const T *gate, *up;
  T *dgate, *dup;
};

template <class T> XT_DEV T round_to(float x) {
  T r;
  store(&r, x);
  return r;
}

// The products for output o with their biases.
template <class T> XT_DEV float gate_of(const SwiGluEpilogue<T>& out, float gate, uint32_t o) {
  return out.gate_bias ? gate + out.gate_bias[o] : gate;
}
template <class T> XT_DEV float up_of(const SwiGluEpilogue<T>& out, float up, uint32_t o) {
  return out.up_bias && (out.gate_bias || !XT_FAULT(UpBiasNeedsGateBias)) ? up + out.up_bias[o] : up;
}

template <class T> XT_DEV SwiGlu<T> swiglu_of(const SwiGluEpilogue<T>& out, float gate, float up, uint32_t o) {
  T g = round_to<T>(gate_of(out, gate, o)), u = round_to<T>(up_of(out, up, o));
  return {round_to<T>(silu_mul_of(load(&g), load(&u))), g, u};
}

// Block rasterization for L2 reuse: eight tiles along Q before the next tile along P, so that concurrently running
// blocks share rows of both operands (an LM head of 50,000 outputs is larger than L2).
struct Tile {
  uint32_t p, q;
};

// The tile of block `block` of a product of `p_tiles` x `q_tiles` tiles.
XT_DEV Tile tile_of(uint32_t block, uint32_t p_tiles, uint32_t q_tiles) {
  uint32_t band = block / (8 * p_tiles) * 8, inside = block - band * p_tiles, height = min(8u, q_tiles - band);
  return {inside / height, band + inside % height};
}

XT_DEV Tile tile_of_block() { return tile_of(blockIdx.y * gridDim.x + blockIdx.x, gridDim.x, gridDim.y); }
