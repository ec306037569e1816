// rope             y1 = fma(x1, c, -(x2 s)); y2 = fma(x2, c, x1 s) over the pairs (i, i + hd/2) of each head
// rope_backward    the inverse rotation: s with the opposite sign                x, y [N, H, hd]
// table: addresses of blocks of 256 positions, each [256, hd]: per position the cosines, then the sines.
// rope_rows, rope_pos: one position per row. rope_at, rope: rows at positions first, first + 1, ...
// Launch: N H hd/2 pairs, 256 threads per block, four adjacent pairs of a head per thread (one pair if hd is no
//   multiple of 8). Accesses are coalesced: 16 bytes in f32, 8 bytes in bf16.
// Cost: bound by bandwidth (2 bytes moved per flop). The table rows are shared by the heads of a row and stay in L1;
//   the block table costs one more dependent load, from L2.
// Order: element-wise. CPU twin: cpu/rope.rs.

#include "contract.cuh"
#include "rope.cuh"
#include "vec4.cuh"

struct Pairs {
  uint32_t n, heads, hd;  // rows, heads, head size
};

// Loads and stores of one element, or of four.
template <class T> XT_DEV void read(float (&to)[1], const T* from) { to[0] = load(from); }
template <class T> XT_DEV void write(T* to, const float (&from)[1]) { store(to, from[0]); }
template <class T> XT_DEV void read(float (&to)[4], const T* from) {
  Vec4<T> x = load4(from);
#pragma unroll
  for (int e = 0; e < 4; e++) to[e] = load(x.v + e);
}
template <class T> XT_DEV void write(T* to, const float (&from)[4]) {
  Vec4<T> x;
#pragma unroll
  for (int e = 0; e < 4; e++) store(x.v + e, from[e]);
  store4(to, x);
}

template <class In, class Out, uint32_t V, class Position>
XT_DEV void rope_pairs(const In* x, const uint64_t* table, Out* y, Pairs of, float sign, Position position) {
  const uint32_t half = of.hd / 2;
  const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * V;
  if (i >= (size_t)of.n * of.heads * half) return;
  const size_t head = i / half, at = head * of.hd + i % half;
  const float* c = rope_row(table, position((uint32_t)(head / of.heads)), of.hd) + i % half;
  float x1[V], x2[V], cos[V], sin[V];
  read(x1, x + at);
  read(x2, x + at + half);
  read(cos, c);
  read(sin, c + half);
#pragma unroll
  for (uint32_t e = 0; e < V; e++) {
    float s = sin[e] * sign, a = x1[e], b = x2[e];
    x1[e] = fmaf(a, cos[e], -(b * s));
    x2[e] = fmaf(b, cos[e], a * s);
  }
  write(y + at, x1);
  write(y + at + half, x2);
}

template <class In, class Out, class Position>
XT_DEV void rope_all(const In* x, const uint64_t* table, Out* y, Pairs of, float sign, Position position) {
  if (of.hd % 8 == 0)
    rope_pairs<In, Out, 4>(x, table, y, of, sign, position);
  else
    rope_pairs<In, Out, 1>(x, table, y, of, sign, position);
}

#define ROPE_ROWS(name, In, Out, sign)                                                                               \
  XT_KERNEL(name, 256)(const In* x, const uint64_t* table, const uint32_t* pos, Out* y, uint32_t n, uint32_t heads,  \
                       uint32_t hd) {                                                                                \
    xt_grid_dependency_sync();                                                                                       \
    rope_all(x, table, y, {n, heads, hd}, sign, [=](uint32_t row) { return pos[row]; });                             \
  }                                                                                                                  \
  XT_EXPORT(name)
ROPE_ROWS(rope_rows_f32, float, float, 1.0f)
ROPE_ROWS(rope_rows_bf16, bf16, bf16, 1.0f)
ROPE_ROWS(rope_rows_f32_bf16, float, bf16, 1.0f)
ROPE_ROWS(rope_rows_bf16_f32, bf16, float, 1.0f)
ROPE_ROWS(rope_backward_f32, float, float, -1.0f)
ROPE_ROWS(rope_pos_f32, float, float, 1.0f)
ROPE_ROWS(rope_pos_bf16, bf16, bf16, 1.0f)

#define ROPE_AT(name, T)                                                                                             \
  XT_KERNEL(name, 256)(const T* x, const uint64_t* table, uint32_t first, T* y, uint32_t n, uint32_t heads,          \
                       uint32_t hd) {                                                                                \
    xt_grid_dependency_sync();                                                                                       \
    rope_all(x, table, y, {n, heads, hd}, 1.0f, [=](uint32_t row) { return first + row; });                          \
  }                                                                                                                  \
  XT_EXPORT(name)
ROPE_AT(rope_at_f32, float)
ROPE_AT(rope_at_bf16, bf16)
