// The chunks of a product's reduction, in the order in which they are added: shared by linear_*.cu.
//
// A product is out[q][p] = start + sum over chunks of (sum over k in the chunk of P(p, k) Q(q, k)).
// The lines of P lie side by side in the output, those of Q below each other:
//   forward  P = w [out, in], Q = x [N, in];  dx  P = w by columns, Q = dy;  dw  P = x by columns, Q = dy by columns
#pragma once

// Indices [at, end) of one chunk of product `part`.
struct Chunk { uint32_t part, at, end; };

// Chunks at 0, 256, ... of up to three products of these lengths, which go into one running sum.
struct Fixed { uint32_t len0, len1, len2; };

XT_DEV uint32_t length_of(const Fixed& w, uint32_t part) { return part == 0 ? w.len0 : part == 1 ? w.len1 : w.len2; }

XT_DEV Chunk first_chunk(const Fixed& w) { return {0, 0, min(256u, w.len0)}; }

// The chunk after one that ends at c.end; false after the last.
XT_DEV bool next_chunk(const Fixed& w, Chunk& c) {
  if (c.end == length_of(w, c.part)) {
    if (++c.part == 3 || length_of(w, c.part) == 0) return false;
    c.end = 0;
  }
  c.at = c.end;
  c.end = min(c.at + 256u, length_of(w, c.part));
  return true;
}

// Chunk i is the rows [bounds[i], bounds[i + 1]): those of a sample, counted from its first row.
struct Listed { const uint32_t* bounds; uint32_t chunks; };

// Rows are never along a line.
XT_DEV uint32_t length_of(const Listed&, uint32_t) { return 0; }

XT_DEV Chunk first_chunk(const Listed& w) { return {0, w.bounds[0], w.bounds[1]}; }

XT_DEV bool next_chunk(const Listed& w, Chunk& c) {
  if (++c.part == w.chunks) return false;
  c.at = c.end;
  c.end = w.bounds[c.part + 1];
  return true;
}

// One operand: its lines, each a vector over k, of up to three products.
template <class T>
struct Lines { const T *p0, *p1, *p2; uint32_t n; };

// Line i of a tile that begins at line `first`; null: there is none.
template <int TILE, class T>
XT_DEV const T* line_of(const Lines<T>& l, const T* base, uint32_t first, uint32_t i, uint32_t len) {
  return first + i < l.n ? base + (size_t)(first + i) * len : nullptr;
}

// Gate and up [n, in]: half of a tile's lines are of the one, half of the other.
template <class T>
struct GateUp { const T *gate, *up; uint32_t n; };

template <int TILE, class T>
XT_DEV const T* line_of(const GateUp<T>& l, const T*, uint32_t first, uint32_t i, uint32_t len) {
  uint32_t o = first / 2 + i % (TILE / 2);
  return o < l.n ? (i < TILE / 2 ? l.gate : l.up) + (size_t)o * len : nullptr;
}

// Where those of the chunk's product lie.
template <class T>
XT_DEV const T* base_of(const Fixed&, const Lines<T>& l, const Chunk& c) { return c.part == 0 ? l.p0 : c.part == 1 ? l.p1 : l.p2; }
template <class T>
XT_DEV const T* base_of(const Fixed&, const GateUp<T>& l, const Chunk&) { return l.gate; }
template <class T>
XT_DEV const T* base_of(const Listed&, const Lines<T>& l, const Chunk&) { return l.p0; }

// What the output begins with and where it goes. Null: absent.
struct Output {
  const float* start;   // the running sum goes on from it
  const float* bias;    // one value a line of P, added to the sum
  const float* h;       // added last, to the sum and its bias
  float* y;
  bf16* rounded;        // instead of y
};

XT_DEV void leave_to(Output& out, float* y) { out.y = y; }
XT_DEV void leave_to(Output& out, bf16* y) { out.rounded = y; }

// The value that leaves: h + (sum + bias), in f32.
XT_DEV float finished(const Output& out, float sum, uint32_t p, size_t at) {
  if (out.bias) sum = sum + out.bias[p];
  if (out.h) sum = out.h[at] + sum;
  return sum;
}

XT_DEV void leave(const Output& out, float sum, uint32_t p, size_t at) {
  sum = finished(out, sum, p, at);
  if (out.rounded) store(out.rounded + at, sum);
  else out.y[at] = sum;
}

// What both products of a pair become: y[o] = silu(gate + bias) (up + bias), each rounded to T first.
template <class T>
struct Gated {
  static constexpr const float* start = nullptr;
  const float *gate_bias, *up_bias;
  T* y;
};

template <class T>
XT_DEV T rounded_to(float x) { T r; store(&r, x); return r; }

template <class T>
XT_DEV float gated(const Gated<T>& out, float gate, float up, uint32_t o) {
  if (out.gate_bias) gate = gate + out.gate_bias[o];
  if (out.up_bias) up = up + out.up_bias[o];
  T g = rounded_to<T>(gate), u = rounded_to<T>(up);
  return silu_mul_of(load(&g), load(&u));
}

// The norm of rows of the output y [N, C], where it is wanted: n = rms_norm(y), f32 or rounded. The last of the blocks
// that share rows takes them, a warp a row. Order: sum32.
struct NormAfter {
  const float* gain;    // null: not wanted
  float eps;
  float* n;
  bf16* rounded;        // instead of n
  uint32_t* met;        // a counter for each tile of rows, at zero
};

// Ends a block of `blocks` that share the rows from `first` on, `tile` of the rows.
XT_DEV void norm_rows(const NormAfter& norm, const float* y, uint32_t c, uint32_t tile, uint32_t blocks, uint32_t first, uint32_t end) {
  if (!norm.gain || !xt_last_block(norm.met + tile, blocks)) return;
  for (uint32_t row = first + threadIdx.x / 32; row < end; row += blockDim.x / 32) {
    size_t at = (size_t)row * c;
    if (norm.rounded) rms_norm_long(y + at, norm.gain, norm.rounded + at, c, norm.eps, threadIdx.x % 32);
    else rms_norm_long(y + at, norm.gain, norm.n + at, c, norm.eps, threadIdx.x % 32);
  }
}

// Which tile of the output a block takes: down eight tiles of Q before the next of P, so that blocks that
// run together read few lines of either from memory (a head of 50,000 outputs is larger than L2).
struct Tile { uint32_t p, q; };

XT_DEV Tile tile_of_block() {
  uint32_t block = blockIdx.y * gridDim.x + blockIdx.x, band = block / (8 * gridDim.x) * 8;
  uint32_t inside = block - band * gridDim.x, height = min(8u, gridDim.y - band);
  return {inside / height, band + inside % height};
}
