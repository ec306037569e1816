// rope             y1 = fma(x1, c, -(x2 s)); y2 = fma(x2, c, x1 s) over the pairs (i, i + hd/2) of each head
// rope_backward    the turn back: s with the other sign        x, y [N, H, hd]; table [P, hd]: cos, then sin of a position
// rope_rows, rope_pos: a position for each row; rope_at, rope: rows at first, first + 1, ...
// Launch: a thread four neighbouring pairs of a head (one pair where hd is no multiple of 8), blocks of 256 over
// N H hd/2. 16-byte accesses in f32, 8-byte in bf16, coalesced; the table's rows are shared by the heads of a row
// and stay in L1. 2 bytes moved a flop: bound by bandwidth. CPU twin: ops/rope.rs.

struct Pairs {
  uint32_t n, heads, hd;   // rows, heads, head size
};

// One value, or four at an address of their own size.
template <class T> XT_DEV void read(float (&to)[1], const T* from) { to[0] = load(from); }
template <class T> XT_DEV void write(T* to, const float (&from)[1]) { store(to, from[0]); }
XT_DEV void read(float (&to)[4], const float* from) {
  float4 x = *(const float4*)from;
  to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}
XT_DEV void write(float* to, const float (&from)[4]) { *(float4*)to = make_float4(from[0], from[1], from[2], from[3]); }
XT_DEV void read(float (&to)[4], const bf16* from) {
  uint2 x = *(const uint2*)from;
  to[0] = xt_bits_f(x.x << 16), to[1] = xt_bits_f(x.x & 0xffff0000u);
  to[2] = xt_bits_f(x.y << 16), to[3] = xt_bits_f(x.y & 0xffff0000u);
}
XT_DEV void write(bf16* to, const float (&from)[4]) {
  uint2 x;
  x.x = to_bf16(from[0]).u | (uint32_t)to_bf16(from[1]).u << 16;
  x.y = to_bf16(from[2]).u | (uint32_t)to_bf16(from[3]).u << 16;
  *(uint2*)to = x;
}

template <class In, class Out, uint32_t V, class Position>
XT_DEV void rope_pairs(const In* x, const float* table, Out* y, Pairs of, float sign, Position position) {
  const uint32_t half = of.hd / 2;
  const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * V;
  if (i >= (size_t)of.n * of.heads * half) return;
  const size_t head = i / half, at = head * of.hd + i % half;
  const float* c = table + (size_t)position((uint32_t)(head / of.heads)) * of.hd + i % half;
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
XT_DEV void rope_turn(const In* x, const float* table, Out* y, Pairs of, float sign, Position position) {
  if (of.hd % 8 == 0) rope_pairs<In, Out, 4>(x, table, y, of, sign, position);
  else rope_pairs<In, Out, 1>(x, table, y, of, sign, position);
}

#define ROPE_ROWS(name, In, Out, sign)                                                                                    \
  XT_KERNEL(name, 256)(const In* x, const float* table, const uint32_t* pos, Out* y, uint32_t n, uint32_t heads, uint32_t hd) { \
    rope_turn(x, table, y, {n, heads, hd}, sign, [=](uint32_t row) { return pos[row]; });                                 \
  }                                                                                                                       \
  XT_EXPORT(name)
ROPE_ROWS(rope_rows_f32, float, float, 1.0f)
ROPE_ROWS(rope_rows_bf16, bf16, bf16, 1.0f)
ROPE_ROWS(rope_rows_f32_bf16, float, bf16, 1.0f)
ROPE_ROWS(rope_rows_bf16_f32, bf16, float, 1.0f)
ROPE_ROWS(rope_backward_f32, float, float, -1.0f)
ROPE_ROWS(rope_pos_f32, float, float, 1.0f)
ROPE_ROWS(rope_pos_bf16, bf16, bf16, 1.0f)

#define ROPE_AT(name, T)                                                                                              \
  XT_KERNEL(name, 256)(const T* x, const float* table, uint32_t first, T* y, uint32_t n, uint32_t heads, uint32_t hd) { \
    rope_turn(x, table, y, {n, heads, hd}, 1.0f, [=](uint32_t row) { return first + row; });                          \
  }                                                                                                                   \
  XT_EXPORT(name)
ROPE_AT(rope_at_f32, float)
ROPE_AT(rope_at_bf16, bf16)
