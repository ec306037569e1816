// silu(g) u for one element; see silu_mul.cu.
#pragma once
#include "contract.cuh"

XT_DEV float silu_mul_of(float g, float u) { return (g / (1.0f + exp_f32(-g))) * u; }
