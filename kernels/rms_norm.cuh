// RMSNorm of one row by one warp, shared by all kernels that norm. Order: sum32. See rms_norm.cu.
#pragma once
#include "in_flight.cuh"

// 1 / rms of c values with this sum of squares.
XT_DEV float inverse_rms_of(float sum, uint32_t c, float eps) { return 1.0f / sqrtf(sum / (float)c + eps); }
// The same from the lanes' sums.
XT_DEV float inverse_rms(float squares, uint32_t c, float eps) { return inverse_rms_of(sum32(squares), c, eps); }

// Loads elements lane, lane + 32, ... of a row of at most 32 K elements; elements past the end are zero.
template <int K, class T> XT_DEV void lane_load(float (&v)[K], const T* x, uint32_t c, uint32_t lane) {
#pragma unroll
  for (int k = 0; k < K; k++) v[k] = lane + 32 * k < c ? load(x + lane + 32 * k) : 0.0f;
}

template <int K> XT_DEV float lane_sum_squares(const float (&v)[K]) {
  float s = 0.0f;
#pragma unroll
  for (int k = 0; k < K; k++) s = fmaf(v[k], v[k], s);
  return s;
}

template <class T> XT_DEV float lane_sum_squares_long(const T* x, uint32_t c, uint32_t lane) {
  float s = 0.0f;
  in_flight<8>(lane, c, 32u, [=](uint32_t i) { return load(x + i); }, [&](uint32_t, float v) { s = fmaf(v, v, s); });
  return s;
}

template <class T> XT_DEV float lane_sum_squares(const T* x, uint32_t c, uint32_t lane) {
  if (c > 1024) return lane_sum_squares_long(x, c, lane);
  float v[32];  // all loads in flight
  lane_load(v, x, c, lane);
  return lane_sum_squares(v);
}

template <int K, class T, class O>
XT_DEV void rms_norm_short(const T* x, const float* w, O* y, uint32_t c, float eps, uint32_t lane) {
  float v[K], gain[K];
  lane_load(v, x, c, lane);
  lane_load(gain, w, c, lane);  // before the stores, which may alias
  float r = inverse_rms(lane_sum_squares(v), c, eps);
#pragma unroll
  for (int k = 0; k < K; k++) {
    uint32_t i = lane + 32 * k;
    if (i < c) store(y + i, (v[k] * r) * gain[k]);
  }
}

template <class T, class O>
XT_DEV void rms_norm_long(const T* x, const float* w, O* y, uint32_t c, float eps, uint32_t lane) {
  float r = inverse_rms(lane_sum_squares_long(x, c, lane), c, eps);
  struct Loaded {
    float x, w;
  };
  in_flight<8>(
      lane, c, 32u, [=](uint32_t i) { return Loaded{load(x + i), w[i]}; },
      [=](uint32_t i, Loaded v) { store(y + i, (v.x * r) * v.w); });
}
