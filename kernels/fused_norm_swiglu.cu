// norm_swiglu      n = rms_norm(h);  y = silu(n gateᵀ + b) * (n upᵀ + c)
//                  h [N, in], gate, up [out, in] -> y [N, out], N <= 8
// Launch: as linear_skinny for up to 8 rows. Half of a block's weight rows belong to the gate, half to up, so a block
//   produces 16 outputs in bf16, 4 in f32.
// Order: sum32 for the norm, then as linear; in bf16 both products are rounded before silu_mul.
// CPU twin: rms_norm, linear, silu_mul.
#include "fused_norm_linears.cuh"
#include "linear_skinny_bf16.cuh"
#include "linear_skinny_f32.cuh"
#include "swiglu_weights.cuh"

XT_KERNEL_FOR(norm_swiglu_bf16, 256, 2)(const float* h, const float* gain, float eps, const bf16* gate,
                                        const bf16* up, const float* gate_bias, const float* up_bias, bf16* y,
                                        uint32_t rows, uint32_t outs, uint32_t width, float* parts, uint32_t* tiles,
                                        uint32_t multipliers) {
  const SwiGluWeights<2> weights = {gate, up, {gate_bias, up_bias, y}, outs};
  prefetch_weights(weights, width);
  xt_grid_dependency_sync();
  XT_SHARED(float, r, 8);
  skinny_bf16<1>(NormedRows{h, gain, eps, r}, weights, rows, width, {parts, tiles, multipliers});
}
XT_EXPORT(norm_swiglu_bf16)

XT_KERNEL_FOR(norm_swiglu_f32, 128, 3)(const float* h, const float* gain, float eps, const float* gate,
                                       const float* up, const float* gate_bias, const float* up_bias, float* y,
                                       uint32_t rows, uint32_t outs, uint32_t width) {
  xt_grid_dependency_sync();
  XT_SHARED(float, r, 8);
  skinny_f32<4>(NormedRows{h, gain, eps, r},
                SwiGluWeightsF32{gate, up, {gate_bias, up_bias, y}, blockIdx.x * 4, outs}, rows, width);
}
XT_EXPORT(norm_swiglu_f32)
