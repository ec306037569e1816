// silu(g) u and its gradient; see silu_mul.cu.
#pragma once
#include "contract.cuh"

// 1 + exp(-g) up to which xt_quotient is correctly rounded: for g from -44 on.
#define SILU_DIVISOR 0x1p64f

// q[i] = g[i] / (1 + exp(-g[i])). One test for all of them: a branch for each would keep their chains apart.
template <int N> XT_DEV void silu_of(const float (&g)[N], float (&q)[N]) {
  bool in_range = true;
#pragma unroll
  for (int i = 0; i < N; i++) {
    float d = 1.0f + exp_f32(-g[i]);
    q[i] = xt_quotient(g[i], d);
    q[i] = fabsf(g[i]) < 0x1p-30f ? g[i] * 0.5f : q[i];  // d = 2, and the steps of the quotient may be denormal
    q[i] = d == 1.0f ? g[i] : q[i];                      // also for infinity
    in_range = in_range && (d <= SILU_DIVISOR || XT_FAULT(SiluDivisorNotTested));
  }
  if (in_range) return;
#pragma unroll
  for (int i = 0; i < N; i++) q[i] = g[i] / (1.0f + exp_f32(-g[i]));
}

// q[i] = 1 / (1 + exp(-g[i])).
template <int N> XT_DEV void sigmoid_of(const float (&g)[N], float (&q)[N]) {
  bool in_range = true;
#pragma unroll
  for (int i = 0; i < N; i++) {
    float d = 1.0f + exp_f32(-g[i]);
    q[i] = xt_quotient(1.0f, d);
    in_range = in_range && (d <= SILU_DIVISOR || XT_FAULT(SiluDivisorNotTested));
  }
  if (in_range) return;
#pragma unroll
  for (int i = 0; i < N; i++) q[i] = 1.0f / (1.0f + exp_f32(-g[i]));
}

XT_DEV float silu_mul_of(float g, float u) {
  float x[1] = {g}, q[1];
  silu_of(x, q);
  return q[0] * u;
}

struct SiluGradient {
  float g, u;
};

// q: the sigmoid of g.
XT_DEV SiluGradient silu_mul_gradient(float g, float q, float u, float dy) {
  return {(dy * u) * (q * fmaf(g, 1.0f - q, 1.0f)), dy * (g * q)};
}

XT_DEV SiluGradient silu_mul_backward_of(float g, float u, float dy) {
  float x[1] = {g}, q[1];
  sigmoid_of(x, q);
  return silu_mul_gradient(g, q[0], u, dy);
}
