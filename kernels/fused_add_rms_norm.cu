// add_rms_norm     h_i = h_i + y_i;  n = rms_norm(h)                   h, y [N, C], w [C] -> h, n [N, C]
// Launch: as rms_norm: one warp per row, four rows per block. Each row is read and written once.
// Order: sum32. CPU twin: add, then rms_norm.
#include "rms_norm.cuh"

template <int K, class O>
XT_DEV void add_rms_norm_short(float* h, const float* y, const float* w, O* n, uint32_t c, float eps, uint32_t lane) {
  float v[K], a[K];
  lane_load(v, h, c, lane);
  lane_load(a, y, c, lane);
#pragma unroll
  for (int k = 0; k < K; k++) {
    v[k] = v[k] + a[k];
    if (lane + 32 * k < c) h[lane + 32 * k] = v[k];
  }
  float r = inverse_rms(lane_sum_squares(v), c, eps);
#pragma unroll
  for (int k = 0; k < K; k++) {
    uint32_t i = lane + 32 * k;
    if (i < c) store(n + i, (v[k] * r) * w[i]);
  }
}

template <class O>
XT_DEV void add_rms_norm_long(float* h, const float* y, const float* w, O* n, uint32_t c, float eps, uint32_t lane) {
#pragma unroll 8
  for (uint32_t i = lane; i < c; i += 32) h[i] = h[i] + y[i];
  float r = inverse_rms(lane_sum_squares(h, c, lane), c, eps);
#pragma unroll 8
  for (uint32_t i = lane; i < c; i += 32) store(n + i, (h[i] * r) * w[i]);
}

template <class O>
XT_DEV void add_rms_norm_of(float* h, const float* y, const float* w, O* n, uint32_t rows, uint32_t c, float eps) {
  uint32_t row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  size_t at = (size_t)row * c;
  if (c <= 128)
    add_rms_norm_short<4>(h + at, y + at, w, n + at, c, eps, lane);
  else if (c <= 1024)
    add_rms_norm_short<32>(h + at, y + at, w, n + at, c, eps, lane);
  else
    add_rms_norm_long(h + at, y + at, w, n + at, c, eps, lane);
}

XT_KERNEL(add_rms_norm_f32, 128)(float* h, const float* y, const float* w, float* n, uint32_t rows, uint32_t c,
                                 float eps) {
  add_rms_norm_of(h, y, w, n, rows, c, eps);
}
XT_EXPORT(add_rms_norm_f32)

XT_KERNEL(add_rms_norm_bf16, 128)(float* h, const float* y, const float* w, bf16* n, uint32_t rows, uint32_t c,
                                  float eps) {
  add_rms_norm_of(h, y, w, n, rows, c, eps);
}
XT_EXPORT(add_rms_norm_bf16)
