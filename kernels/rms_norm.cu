// rms_norm     r = 1 / sqrt(sum32(x_i x_i) / C + eps);  y_i = (x_i r) w_i       x [N, C], w [C] -> y [N, C]
// Launch: one warp per row, one or four rows per block (heads and whole rows alike). Rows of up to 1024 values stay in
//   registers between the sum and the products; longer ones are read twice.
// Order: sum32, lane t takes t, t + 32, ... CPU twin: cpu/norm.rs.

#include "rms_norm.cuh"

template <class T, class O>
XT_DEV void rms_norm_of(const T* x, const float* w, O* y, uint32_t n, uint32_t c, float eps) {
  uint32_t row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= n) return;
  x += (size_t)row * c;
  y += (size_t)row * c;
  if (c <= 128)
    rms_norm_short<4>(x, w, y, c, eps, lane);
  else if (c <= 1024)
    rms_norm_short<32>(x, w, y, c, eps, lane);
  else
    rms_norm_long(x, w, y, c, eps, lane);
}

#define RMS_NORM(name, T, O)                                                                                         \
  XT_KERNEL(name, 128)(const T* x, const float* w, O* y, uint32_t n, uint32_t c, float eps) {                        \
    xt_grid_dependency_sync();                                                                                       \
    rms_norm_of(x, w, y, n, c, eps);                                                                                 \
  }                                                                                                                  \
  XT_EXPORT(name)
RMS_NORM(rms_norm_f32_f32, float, float)
RMS_NORM(rms_norm_f32_bf16, float, bf16)
RMS_NORM(rms_norm_bf16_f32, bf16, float)
RMS_NORM(rms_norm_bf16_bf16, bf16, bf16)
#undef RMS_NORM
