// QK-norm and RoPE of one head by one warp, shared by fused_heads.cu and the kernels of append_attention.
#pragma once
#include "rms_norm.cuh"
#include "rope.cuh"

// y = rope(rms_norm(x, gain)); a null gain skips the norm. `staging` has hd values; x, y and staging may be the same
// memory. hd is even, at most 256.
template <class T>
XT_DEV void norm_rotate(const T* x, const float* gain, const float* cos, T* y, uint32_t hd, float eps, float* staging,
                        uint32_t lane) {
  float v[8];
  lane_load(v, x, hd, lane);
  float r = gain ? inverse_rms(lane_sum_squares(v), hd, eps) : 1.0f;
#pragma unroll
  for (int k = 0; k < 8; k++) {
    uint32_t i = lane + 32 * k;
    if (i < hd) staging[i] = gain ? (v[k] * r) * gain[i] : v[k];
  }
  __syncwarp();
  uint32_t half = hd / 2;
  for (uint32_t i = lane; i < half; i += 32) {
    float a = staging[i], b = staging[i + half], c = cos[i], s = cos[i + half];
    store(y + i, fmaf(a, c, -(b * s)));
    store(y + i + half, fmaf(b, c, a * s));
  }
}
