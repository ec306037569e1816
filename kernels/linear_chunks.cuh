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

// Where those of the chunk's product lie.
template <class T>
XT_DEV const T* base_of(const Fixed&, const Lines<T>& l, const Chunk& c) { return c.part == 0 ? l.p0 : c.part == 1 ? l.p1 : l.p2; }
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

// Which tile of the output a block takes: down eight tiles of Q before the next of P, so that blocks that
// run together read few lines of either from memory (a head of 50,000 outputs is larger than L2).
struct Tile { uint32_t p, q; };

XT_DEV Tile tile_of_block() {
  uint32_t block = blockIdx.y * gridDim.x + blockIdx.x, band = block / (8 * gridDim.x) * 8;
  uint32_t inside = block - band * gridDim.x, height = min(8u, gridDim.y - band);
  return {inside / height, band + inside % height};
}
