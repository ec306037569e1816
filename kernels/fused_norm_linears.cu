// norm_linears     n = rms_norm(h);  y_i = n w_iᵀ + b_i for up to three matrices
//                  h [N, in], w_i [out_i, in] -> y_i [N, out_i], N <= 8
// Launch: as linear_skinny for up to 8 rows; the blocks of one matrix follow those of the previous one: grid (1,
//   blocks) in bf16, (blocks, 1) in f32. An absent matrix has no outputs.
// Order: sum32 for the norm, then as linear. CPU twin: rms_norm, linear.
#include "fused_norm_linears.cuh"
#include "linear_matrices.cuh"
#include "linear_skinny_bf16.cuh"
#include "linear_skinny_f32.cuh"

#define NORM_LINEARS(name, threads, blocks, T, skinny)                                                               \
  XT_KERNEL_FOR(name, threads, blocks)(const float* h, const float* gain, float eps, const T* w0, const T* w1,       \
                                       const T* w2, const float* b0, const float* b1, const float* b2, T* y0, T* y1, \
                                       T* y2, uint32_t rows, uint32_t outs0, uint32_t outs1, uint32_t outs2,         \
                                       uint32_t width) {                                                             \
    xt_grid_dependency_sync();                                                                                       \
    XT_SHARED(float, r, 8);                                                                                          \
    skinny(NormedRows{h, gain, eps, r}, Matrices<T>{w0, w1, w2, b0, b1, b2, y0, y1, y2, outs0, outs1, outs2}, rows,  \
           width);                                                                                                   \
  }                                                                                                                  \
  XT_EXPORT(name)
NORM_LINEARS(norm_linears_bf16, 256, 4, bf16, skinny_bf16<1>)
NORM_LINEARS(norm_linears_f32, 128, 2, float, skinny_f32<4>)
#undef NORM_LINEARS
