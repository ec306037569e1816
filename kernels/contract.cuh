// Arithmetic of docs/numerics.md that all kernels share: bf16 conversion, exp, log, sum32, order-preserving keys.
// Every fma is explicit, and nothing is contracted, so nvcc and g++ produce the same bits.
#pragma once
#include "xt.cuh"

// ---- bf16
XT_DEV float from_bf16(bf16 b) { return xt_bits_f((uint32_t)b.u << 16); }

// Round to nearest, ties to even. Every NaN becomes 0x7fff.
XT_DEV bf16 to_bf16(float x) {
  bf16 r;
  r.u = (uint16_t)xt_pack_bf16(x, 0.0f);
  return r;
}

// Activations in f32 or bf16: loads widen to f32, stores round to the storage type.
XT_DEV float load(const float* p) { return *p; }
XT_DEV float load(const bf16* p) { return from_bf16(*p); }
XT_DEV void store(float* p, float x) { *p = x; }
XT_DEV void store(bf16* p, float x) { *p = to_bf16(x); }

// ---- docs/numerics.md, section 1
XT_DEV float max_f32(float a, float b) { return b > a ? b : a; }

// ---- docs/numerics.md, section 6
// exp(x) for -87 <= x <= 88.72283.
XT_DEV float exp_in_range(float x) {
  float t = fmaf(x, xt_bits_f(0x3fb8aa3bu), 12582912.0f);
  float n = t - 12582912.0f;
  float r = fmaf(n, -0.693145751953125f, x);
  r = fmaf(n, -1.428606765330187e-06f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  p = fmaf(p, r * r, r) + 1.0f;
  return xt_bits_f(xt_f_bits(p) + (xt_f_bits(t) << 23));
}

// Without branches: a compiler interleaves the chains of several calls.
XT_DEV float exp_f32(float x) {
  float y = exp_in_range(x);
  y = x < -87.0f ? 0.0f : y;
  y = x > 88.72283f ? xt_bits_f(0x7f800000u) : y;
  return x != x ? x : y;
}

// x[at(i)] = exp(x[at(i)]) for i < N. One test of the range for all of them, which a NaN fails.
template <int N, int SIZE, class At> XT_DEV void exp_each(float (&x)[SIZE], At at) {
  float size = 0.0f;
#pragma unroll
  for (int i = 0; i < N; i++) size = xt_max_nan(size, fabsf(x[at(i)]));
  if (size <= 87.0f || XT_FAULT(ExpOutOfRange)) {
#pragma unroll
    for (int i = 0; i < N; i++) x[at(i)] = exp_in_range(x[at(i)]);
  } else {
#pragma unroll
    for (int i = 0; i < N; i++) x[at(i)] = exp_f32(x[at(i)]);
  }
}

XT_DEV float log_f32(float x) {
  if (x == 0.0f) return xt_bits_f(0xff800000u);
  if (x != x || x < 0.0f) return xt_bits_f(0x7fffffffu);
  if (xt_f_bits(x) == 0x7f800000u) return x;
  float k = 0.0f;
  if (xt_f_bits(x) < 0x00800000u) {
    x = x * 8388608.0f;
    k = -23.0f;
  }
  int32_t e = (int32_t)(xt_f_bits(x) - 0x3f3504f3u) >> 23;
  float f = xt_bits_f(xt_f_bits(x) - ((uint32_t)e << 23)) - 1.0f;
  float n = (float)e + k, s = f * f;
  float p = 7.0376836292e-2f;
  p = fmaf(p, f, -1.1514610310e-1f);
  p = fmaf(p, f, 1.1676998740e-1f);
  p = fmaf(p, f, -1.2420140846e-1f);
  p = fmaf(p, f, 1.4249322787e-1f);
  p = fmaf(p, f, -1.6668057665e-1f);
  p = fmaf(p, f, 2.0000714765e-1f);
  p = fmaf(p, f, -2.4999993993e-1f);
  p = fmaf(p, f, 3.3333331174e-1f);
  p = (p * f) * s;
  p = fmaf(n, -2.12194440e-4f, p);
  p = fmaf(s, -0.5f, p);
  return fmaf(n, 0.693359375f, f + p);
}

// ---- docs/numerics.md, section 2
// The butterfly reduction that ends a sum32, over the 32 lanes of a warp. All lanes receive the result.
XT_DEV float sum32(float v) {
  if (XT_FAULT(LastLaneNotSummed) && threadIdx.x % 32 == 31) v = 0.0f;
#pragma unroll
  for (int o = 16; o; o >>= 1) v = v + __shfl_xor_sync(0xffffffffu, v, o);
  return v + 0.0f;
}

// Maximum over the 32 lanes of a warp. All lanes receive the result.
XT_DEV float max32(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v = max_f32(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}

// ---- order-preserving keys
// Monotone in z as an unsigned integer; -0 and +0 map to the same key.
XT_DEV uint32_t ordered_bits(float z) {
  uint32_t u = xt_f_bits(z + 0.0f);
  return u >> 31 ? ~u : u | 0x80000000u;
}

// The inverse of ordered_bits.
XT_DEV float from_ordered_bits(uint32_t u) { return xt_bits_f(u >> 31 ? u & 0x7fffffffu : ~u); }
