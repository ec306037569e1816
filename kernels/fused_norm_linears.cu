// norm_linears     n = rms_norm(h);  y_i = n w_iᵀ + b_i for up to three matrices
//                  h [N, in], w_i [out_i, in] -> y_i [N, out_i], N <= 8
// Launch: as linear_skinny for up to 8 rows; the blocks of one matrix follow those of the previous one: grid (1,
//   blocks, G) in bf16, (blocks, 1) in f32. An absent matrix has no outputs.
// Order: sum32 for the norm, then as linear. CPU twin: rms_norm, linear.
#include "fused_norm_linears.cuh"
#include "linear_matrices.cuh"
#include "linear_skinny_bf16.cuh"
#include "linear_skinny_f32.cuh"

XT_KERNEL_FOR(norm_linears_bf16, 256, 2)(const float* h, const float* gain, float eps, const bf16* w0, const bf16* w1,
                                         const bf16* w2, const float* b0, const float* b1, const float* b2, bf16* y0,
                                         bf16* y1, bf16* y2, uint32_t rows, uint32_t outs0, uint32_t outs1,
                                         uint32_t outs2, uint32_t width, float* parts, uint32_t* tiles,
                                         uint32_t multipliers) {
  const Matrices<bf16> weights = {w0, w1, w2, b0, b1, b2, y0, y1, y2, outs0, outs1, outs2};
  prefetch_weights(weights, width);
  xt_grid_dependency_sync();
  XT_SHARED(float, r, 8);
  skinny_bf16<1>(NormedRows{h, gain, eps, r}, weights, rows, width, {parts, tiles, multipliers});
}
XT_EXPORT(norm_linears_bf16)

XT_KERNEL_FOR(norm_linears_f32, 128, 2)(const float* h, const float* gain, float eps, const float* w0,
                                        const float* w1, const float* w2, const float* b0, const float* b1,
                                        const float* b2, float* y0, float* y1, float* y2, uint32_t rows,
                                        uint32_t outs0, uint32_t outs1, uint32_t outs2, uint32_t width) {
  xt_grid_dependency_sync();
  XT_SHARED(float, r, 8);
  skinny_f32<4>(NormedRows{h, gain, eps, r}, Matrices<float>{w0, w1, w2, b0, b1, b2, y0, y1, y2, outs0, outs1, outs2},
                rows, width);
}
XT_EXPORT(norm_linears_f32)

// norm_linear      y = rms_norm(h) wᵀ + b in f32: the head of a model in bf16
//                  h [N, in], w [out, in] -> y [N, out], N <= 8
XT_KERNEL_FOR(norm_linear_bf16, 256, 2)(const float* h, const float* gain, float eps, const bf16* w,
                                        const float* bias, float* y, uint32_t rows, uint32_t outs, uint32_t width,
                                        float* parts, uint32_t* tiles, uint32_t multipliers) {
  const PlainWeights weights = {w, {nullptr, bias, nullptr, y, nullptr}, blockIdx.y * 16, outs};
  prefetch_weights(weights, width);
  xt_grid_dependency_sync();
  XT_SHARED(float, r, 8);
  skinny_bf16<1>(NormedRows{h, gain, eps, r}, weights, rows, width, {parts, tiles, multipliers});
}
XT_EXPORT(norm_linear_bf16)
