// QK-norm and RoPE of one head by one warp, shared by fused_heads.cu and the kernels of append_attention.
#pragma once
#include "rms_norm.cuh"
#include "rope.cuh"

// The values lane + 32 k of rms_norm(x, gain); a null gain skips the norm.
template <int K, class T>
XT_DEV void norm_lanes(float (&v)[K], const T* x, const float* gain, uint32_t hd, float eps, uint32_t lane) {
  float g[K];
  lane_load(v, x, hd, lane);
  if (!gain) return;
  lane_load(g, gain, hd, lane);
  float r = inverse_rms(lane_sum_squares(v), hd, eps);
#pragma unroll
  for (int k = 0; k < K; k++) v[k] = (v[k] * r) * g[k];
}

// hd = 32 K is 64 or 128: both values of a pair belong to one lane, so nothing is staged. v: the values of the lane, c: its
// cosines and sines, g: its gains, unless there is no norm.
template <int K, class T>
XT_DEV void norm_rotate_loaded(float (&v)[K], bool norm, const float (&g)[K], const float (&c)[K], T* y, float eps,
                               uint32_t lane) {
  const uint32_t hd = 32 * K;
  if (norm) {
    float r = inverse_rms(lane_sum_squares(v), hd, eps);
#pragma unroll
    for (int k = 0; k < K; k++) v[k] = (v[k] * r) * g[k];
  }
#pragma unroll
  for (int k = 0; k < K / 2; k++) {
    float a = v[k], b = v[k + K / 2], s = c[k + K / 2];
    store(y + lane + 32 * k, fmaf(a, c[k], -(b * s)));
    store(y + lane + 32 * k + hd / 2, fmaf(b, c[k], a * s));
  }
}

template <int K, class T>
XT_DEV void norm_rotate_lanes(const T* x, const float* gain, const float* cos, T* y, float eps, uint32_t lane) {
  float v[K], c[K], g[K] = {};
  lane_load(v, x, 32 * K, lane);
  lane_load(c, cos, 32 * K, lane);
  if (gain) lane_load(g, gain, 32 * K, lane);
  norm_rotate_loaded(v, gain != nullptr, g, c, y, eps, lane);
}

// y = rope(rms_norm(x, gain)); a null gain skips the norm. `staging` has hd values; x, y and staging may be the same
// memory. hd is even, at most 256.
template <class T>
XT_DEV void norm_rotate(const T* x, const float* gain, const float* cos, T* y, uint32_t hd, float eps, float* staging,
                        uint32_t lane) {
  if (hd == 64) return norm_rotate_lanes<2>(x, gain, cos, y, eps, lane);
  if (hd == 128) return norm_rotate_lanes<4>(x, gain, cos, y, eps, lane);
  float v[8];
  norm_lanes(v, x, gain, hd, eps, lane);
#pragma unroll
  for (int k = 0; k < 8; k++)
    if (lane + 32 * k < hd) staging[lane + 32 * k] = v[k];
  __syncwarp();
  uint32_t half = hd / 2;
  for (uint32_t i = lane; i < half; i += 32) {
    float a = staging[i], b = staging[i + half], c = cos[i], s = cos[i + half];
    store(y + i, fmaf(a, c, -(b * s)));
    store(y + i + half, fmaf(b, c, a * s));
  }
}
