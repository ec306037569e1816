// RMSNorm fused into the prologue of a skinny product; shared by fused_norm_linears.cu and fused_norm_swiglu.cu.
// Each block norms the rows that it reads: it computes their 1/rms while its first weights are in flight, and scales
// the values as it loads them. This costs each block one read of h [N, in] f32 from L2, as much as its weights at 8
// rows, so these kernels take at most 8 rows.
#pragma once
#include "contract.cuh"
#include "rms_norm.cuh"

// Up to 8 rows h [N, in] and the gain of their norm; r: 1/rms of each row, in shared memory.
struct NormedRows {
  const float *h, *gain;
  float eps;
  float* r;
};

// r[n] = 1/rms of row n0 + n, one warp per row.
XT_DEV void compute_rms(const NormedRows& x, uint32_t n0, uint32_t m, uint32_t width) {
  uint32_t lane = threadIdx.x & 31;
  for (uint32_t n = threadIdx.x >> 5; n < m; n += blockDim.x / 32) {
    float r = inverse_rms(lane_sum_squares(x.h + (size_t)(n0 + n) * width, width, lane), width, x.eps);
    if (lane == 0) x.r[n] = r;
  }
  __syncthreads();
}

// ---- bf16
XT_DEV void compute_rms(const NormedRows& x, uint32_t lines, uint32_t n0, uint32_t rows, uint32_t width) {
  compute_rms(x, n0, min(lines, rows - n0), width);
}

XT_DEV void load_rows(const NormedRows& x, bf16* s, uint32_t lines, uint32_t n0, uint32_t rows, uint32_t width,
                      uint32_t at) {
  uint32_t lane = threadIdx.x & 31, n = min(256u, width - at), padded = (n + 15) / 16 * 16, k = lane * 8;
  if (k >= padded) return;
  for (uint32_t line = 0; line < lines; line++) {
    bool in_range = n0 + line < rows;
    const float r = x.r[XT_FAULT(ScaleOfFirstNormedRow) ? 0 : line];
    const float *h = x.h + (size_t)(n0 + line) * width + at + k, *gain = x.gain + at + k;
    bf16* to = s + line * 264 + k;
    float v[8] = {};
    if (in_range && k < n && (width & 7) == 0) {
#pragma unroll
      for (int q = 0; q < 2; q++) {
        float4 a = *reinterpret_cast<const float4*>(h + 4 * q), g = *reinterpret_cast<const float4*>(gain + 4 * q);
        v[4 * q] = (a.x * r) * g.x;
        v[4 * q + 1] = (a.y * r) * g.y;
        v[4 * q + 2] = (a.z * r) * g.z;
        v[4 * q + 3] = (a.w * r) * g.w;
      }
    } else if (in_range) {
#pragma unroll
      for (uint32_t i = 0; i < 8; i++)
        if (k + i < n) v[i] = (h[i] * r) * gain[i];
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(xt_pack_bf16(v[0], v[1]), xt_pack_bf16(v[2], v[3]),
                                               xt_pack_bf16(v[4], v[5]), xt_pack_bf16(v[6], v[7]));
  }
}

// ---- f32
struct NormedLine {
  const float *h, *gain;
  float r;
};
XT_DEV NormedLine operand_row(const NormedRows& x, uint32_t n, uint32_t local, uint32_t width, uint32_t k) {
  return {x.h + (size_t)n * width + k, x.gain + k, x.r[local]};
}
XT_DEV float value(const NormedLine& x, uint32_t k) { return (x.h[k] * x.r) * x.gain[k]; }
XT_DEV float4 values(const NormedLine& x, uint32_t k) {
  float4 h = *reinterpret_cast<const float4*>(x.h + k), g = *reinterpret_cast<const float4*>(x.gain + k);
  return make_float4((h.x * x.r) * g.x, (h.y * x.r) * g.y, (h.z * x.r) * g.z, (h.w * x.r) * g.w);
}
