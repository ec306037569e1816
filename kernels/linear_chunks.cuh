// The chunks of a product's reduction, in the order in which they are added: shared by linear_*.cu.
//
// A product is out[q][p] = start + sum over chunks of (sum over k in the chunk of P(p, k) Q(q, k)).
// The lines of P lie side by side in the output, those of Q below each other:
//   forward  P = w [out, in], Q = x [N, in];  dx  P = w by columns, Q = dy;  dw  P = x by columns, Q = dy by columns
#pragma once
#include "contract.cuh"
#include "rms_norm.cuh"
#include "silu_mul.cuh"

// Indices [at, end) of one chunk of product `part`.
struct Chunk {
  uint32_t part, at, end;
};

// Chunks at 0, 256, ... of up to three products of these lengths, which go into one running sum.
struct UniformChunks {
  uint32_t len0, len1, len2;
};

XT_DEV uint32_t k_extent(const UniformChunks& w, uint32_t part) {
  return part == 0 ? w.len0 : part == 1 ? w.len1 : w.len2;
}

XT_DEV Chunk first_chunk(const UniformChunks& w) { return {0, 0, min(256u, w.len0)}; }

// The chunk after one that ends at c.end; false after the last.
XT_DEV bool next_chunk(const UniformChunks& w, Chunk& c) {
  if (c.end == k_extent(w, c.part)) {
    if (++c.part == 3 || k_extent(w, c.part) == 0) return false;
    c.end = 0;
  }
  c.at = c.end;
  c.end = min(c.at + 256u, k_extent(w, c.part));
  return true;
}

// Chunk i is the rows [bounds[i], bounds[i + 1]): those of a sample, counted from its first row.
struct RowChunks {
  const uint32_t* bounds;
  uint32_t chunks;
};

// Rows are never along a line.
XT_DEV uint32_t k_extent(const RowChunks&, uint32_t) { return 0; }

XT_DEV Chunk first_chunk(const RowChunks& w) { return {0, w.bounds[0], w.bounds[1]}; }

XT_DEV bool next_chunk(const RowChunks& w, Chunk& c) {
  if (++c.part == w.chunks) return false;
  c.at = c.end;
  c.end = w.bounds[c.part + 1];
  return true;
}

// One operand: its lines, each a vector over k, of up to three products.
template <class T> struct Operand {
  const T *p0, *p1, *p2;
  uint32_t n;
};

// Line i of a tile that begins at line `first`; null: there is none.
template <int TILE, class T>
XT_DEV const T* operand_row(const Operand<T>& l, const T* base, uint32_t first, uint32_t i, uint32_t len) {
  return first + i < l.n ? base + (size_t)(first + i) * len : nullptr;
}

// Gate and up [n, in]: half of a tile's lines are of the one, half of the other.
template <class T> struct GateUp {
  const T *gate, *up;
  uint32_t n;
};

template <int TILE, class T>
XT_DEV const T* operand_row(const GateUp<T>& l, const T*, uint32_t first, uint32_t i, uint32_t len) {
  uint32_t o = first / 2 + i % (TILE / 2);
  return o < l.n ? (i < TILE / 2 ? l.gate : l.up) + (size_t)o * len : nullptr;
}

// Where those of the chunk's product lie.
template <class T> XT_DEV const T* operand_base(const UniformChunks&, const Operand<T>& l, const Chunk& c) {
  return c.part == 0 ? l.p0 : c.part == 1 ? l.p1 : l.p2;
}
template <class T> XT_DEV const T* operand_base(const UniformChunks&, const GateUp<T>& l, const Chunk&) {
  return l.gate;
}
template <class T> XT_DEV const T* operand_base(const RowChunks&, const Operand<T>& l, const Chunk&) { return l.p0; }

// What the output begins with and where it goes. Null: absent.
struct Epilogue {
  const float* init;  // the running sum goes on from it
  const float* bias;  // one value a line of P, added to the sum
  const float* h;     // added last, to the sum and its bias
  float* y;
  bf16* y_bf16;  // instead of y
};

XT_DEV void set_output(Epilogue& out, float* y) { out.y = y; }
XT_DEV void set_output(Epilogue& out, bf16* y) { out.y_bf16 = y; }

// The value that leaves: h + (sum + bias), in f32.
XT_DEV float apply_epilogue(const Epilogue& out, float sum, uint32_t p, size_t at) {
  if (out.bias) sum = sum + out.bias[p];
  if (out.h) sum = out.h[at] + sum;
  return sum;
}

XT_DEV void store_output(const Epilogue& out, float sum, uint32_t p, size_t at) {
  sum = apply_epilogue(out, sum, p, at);
  if (out.y_bf16)
    store(out.y_bf16 + at, sum);
  else
    out.y[at] = sum;
}

// What both products of a pair become: y[o] = silu(gate + bias) (up + bias), each rounded to T first.
template <class T> struct SwiGluEpilogue {
  static constexpr const float* init = nullptr;
  const float *gate_bias, *up_bias;
  T* y;
};

template <class T> XT_DEV T round_to(float x) {
  T r;
  store(&r, x);
  return r;
}

template <class T> XT_DEV float swiglu_of(const SwiGluEpilogue<T>& out, float gate, float up, uint32_t o) {
  if (out.gate_bias) gate = gate + out.gate_bias[o];
  if (out.up_bias) up = up + out.up_bias[o];
  T g = round_to<T>(gate), u = round_to<T>(up);
  return silu_mul_of(load(&g), load(&u));
}

// The norm of rows of the output y [N, C], where it is wanted: n = rms_norm(y), f32 or rounded. The last of the blocks
// that share rows takes them, a warp a row. Order: sum32.
struct NormEpilogue {
  const float* gain;  // null: not wanted
  float eps;
  float* n;
  bf16* y_bf16;        // instead of n
  uint32_t* counters;  // a counter for each tile of rows, at zero
};

// Ends a block of `blocks` that share the rows from `first` on, `tile` of the rows.
XT_DEV void norm_epilogue(const NormEpilogue& norm, const float* y, uint32_t c, uint32_t tile, uint32_t blocks,
                          uint32_t first, uint32_t end) {
  if (!norm.gain || !xt_last_block(norm.counters + tile, blocks)) return;
  for (uint32_t row = first + threadIdx.x / 32; row < end; row += blockDim.x / 32) {
    size_t at = (size_t)row * c;
    if (norm.y_bf16)
      rms_norm_long(y + at, norm.gain, norm.y_bf16 + at, c, norm.eps, threadIdx.x % 32);
    else
      rms_norm_long(y + at, norm.gain, norm.n + at, c, norm.eps, threadIdx.x % 32);
  }
}

// Which tile of the output a block takes: down eight tiles of Q before the next of P, so that blocks that
// run together read few lines of either from memory (a head of 50,000 outputs is larger than L2).
struct Tile {
  uint32_t p, q;
};

XT_DEV Tile tile_of_block() {
  uint32_t block = blockIdx.y * gridDim.x + blockIdx.x, band = block / (8 * gridDim.x) * 8;
  uint32_t inside = block - band * gridDim.x, height = min(8u, gridDim.y - band);
  return {inside / height, band + inside % height};
}
