// silu(g) u and its gradient for one element; see silu_mul.cu.
#pragma once
#include "contract.cuh"

XT_DEV float silu_mul_of(float g, float u) { return (g / (1.0f + exp_f32(-g))) * u; }

struct SiluGradient {
  float g, u;
};

XT_DEV SiluGradient silu_mul_backward_of(float g, float u, float dy) {
  float q = 1.0f / (1.0f + exp_f32(-g));
  return {(dy * u) * (q * fmaf(g, 1.0f - q, 1.0f)), dy * (g * q)};
}
