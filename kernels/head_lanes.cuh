// Heads of 64 or 128 values by eight lanes each: lane l of eight has the values 32 k + 4 l .. 32 k + 4 l + 3, k < K. A warp
// has four heads, and all loads and stores are vectors. Shared by the kernels of norm_rope.cu.
#pragma once
#include "rms_norm.cuh"

XT_DEV void load_four(float (&v)[4], const float* p) {
  const float4 x = *reinterpret_cast<const float4*>(p);
  v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
}
XT_DEV void load_four(float (&v)[4], const bf16* p) {
  const uint2 x = *reinterpret_cast<const uint2*>(p);
  v[0] = xt_bits_f(x.x << 16), v[1] = xt_bits_f(x.x & 0xffff0000), v[2] = xt_bits_f(x.y << 16),
  v[3] = xt_bits_f(x.y & 0xffff0000);
}
XT_DEV void store_four(float* p, const float (&v)[4]) {
  *reinterpret_cast<float4*>(p) = make_float4(v[0], v[1], v[2], v[3]);
}
XT_DEV void store_four(bf16* p, const float (&v)[4]) {
  *reinterpret_cast<uint2*>(p) = make_uint2(xt_pack_bf16(v[0], v[1]), xt_pack_bf16(v[2], v[3]));
}

// The lane's values of a head.
template <int K> struct HeadLane {
  float v[K][4];
  template <class T> XT_MEMBER void load(const T* head) {
#pragma unroll
    for (int k = 0; k < K; k++) load_four(v[k], head + 32 * k + threadIdx.x % 8 * 4);
  }
  template <class T> XT_MEMBER void store(T* head) const {
#pragma unroll
    for (int k = 0; k < K; k++) store_four(head + 32 * k + threadIdx.x % 8 * 4, v[k]);
  }
};

// sum32 of a head's values v w: lane t of 32 would have the chain of t, t + 32, ..., which are in one lane of eight here.
// A step of the butterfly adds the same two sums, in either order.
template <int K> XT_DEV float head_dot(const HeadLane<K>& v, const HeadLane<K>& w) {
  float p[4] = {};
#pragma unroll
  for (int k = 0; k < K; k++)
#pragma unroll
    for (int e = 0; e < 4; e++) p[e] = fmaf(v.v[k][e], w.v[k][e], p[e]);
#pragma unroll
  for (int o = 4; o; o >>= 1)
#pragma unroll
    for (int e = 0; e < 4; e++) p[e] = p[e] + __shfl_xor_sync(0xffffffffu, p[e], o);
  return ((p[0] + p[2]) + (p[1] + p[3])) + 0.0f;
}

// Cosines in v[k], k < K / 2, and sines in v[k + K / 2], as the RoPE table has them. forward: y = rotate(x); otherwise back.
template <int K> XT_DEV void rotate_head(HeadLane<K>& x, const HeadLane<K>& table, bool forward) {
#pragma unroll
  for (int k = 0; k < K / 2; k++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const float a = x.v[k][e], b = x.v[k + K / 2][e], c = table.v[k][e], s = table.v[k + K / 2][e];
      x.v[k][e] = forward ? fmaf(a, c, -(b * s)) : fmaf(a, c, b * s);
      x.v[k + K / 2][e] = forward ? fmaf(b, c, a * s) : fmaf(b, c, -(a * s));
    }
}
