// norm_swiglu      n = rms_norm(h);  y = silu(n gateᵀ + b) * (n upᵀ + c)        h [N, in], gate, up [out, in] -> y [N, out]
// Launch: as linear_few for up to 8 rows; half of a block's lines are of the gate, half of up, so a block leaves 8
//   outputs in bf16, 4 in f32.
// Order: sum32 of the norm, then that of linear; in bf16 both products are rounded first. CPU twin: rms_norm,
//   linear, silu_mul.
#include "fused_norm_linears.cuh"

// ---- bf16: lines 0 .. 7 gate, 8 .. 15 up
struct GatedWeights {
  const bf16 *gate, *up;
  Gated<bf16> out;
  uint32_t outs;
};
XT_DEV void bring_weights(const GatedWeights& w, bf16* s, uint32_t width, uint32_t at) {
  uint32_t o0 = blockIdx.y * 8;
  bring_chunk(s, w.gate + (size_t)o0 * width, 8, w.outs - o0, width, at);
  bring_chunk(s + 8 * 264, w.up + (size_t)o0 * width, 8, w.outs - o0, width, at);
}
XT_DEV void leave_all(const GatedWeights& w, const float* total, uint32_t values, uint32_t n0, uint32_t rows) {
  for (uint32_t i = threadIdx.x; i < values / 2; i += blockDim.x) {
    uint32_t line = i % 8, o = blockIdx.y * 8 + line, n = n0 + i / 8;
    if (o >= w.outs || n >= rows) continue;
    const float* sums = total + i / 8 * 16 + line;
    store(w.out.y + (size_t)n * w.outs + o, gated(w.out, sums[0], sums[8], o));
  }
}

XT_KERNEL_FOR(norm_swiglu_bf16, 256, 4)(const float* h, const float* gain, float eps, const bf16* gate, const bf16* up, const float* gate_bias,
                                 const float* up_bias, bf16* y, uint32_t rows, uint32_t outs, uint32_t width) {
  XT_SHARED(float, r, 8);
  few_rows_bf16<1>(NormedRows{h, gain, eps, r}, GatedWeights{gate, up, {gate_bias, up_bias, y}, outs}, rows, width);
}
XT_EXPORT(norm_swiglu_bf16)

// ---- f32: lines 0 .. 3 gate, 4 .. 7 up
struct GatedWeightsF32 {
  const float *gate, *up;
  Gated<float> out;
  uint32_t o0, outs;
};
XT_DEV const float* weights_of(const GatedWeightsF32& w, uint32_t line, uint32_t width) {
  uint32_t o = w.o0 + line % 4;
  return o < w.outs ? (line < 4 ? w.gate : w.up) + (size_t)o * width : nullptr;
}
XT_DEV void leave_one(const GatedWeightsF32& w, float y, uint32_t line, uint32_t n, uint32_t rows) {
  uint32_t o = w.o0 + line % 4;
  float up = __shfl_down_sync(0xffffffffu, y, 4);
  if (line < 4 && o < w.outs && n < rows) w.out.y[(size_t)n * w.outs + o] = gated(w.out, y, up, o);
}

XT_KERNEL_FOR(norm_swiglu_f32, 128, 3)(const float* h, const float* gain, float eps, const float* gate, const float* up, const float* gate_bias,
                                const float* up_bias, float* y, uint32_t rows, uint32_t outs, uint32_t width) {
  XT_SHARED(float, r, 8);
  few_rows<4>(NormedRows{h, gain, eps, r}, GatedWeightsF32{gate, up, {gate_bias, up_bias, y}, blockIdx.x * 4, outs}, rows, width);
}
XT_EXPORT(norm_swiglu_f32)
