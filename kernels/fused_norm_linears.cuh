// RMSNorm fused into the prologue of a skinny product; shared by fused_norm_linears.cu and fused_norm_swiglu.cu.
// Each block norms the rows that it reads: it computes their 1/rms while its first weights are in flight, and scales
// the values as it loads them. This costs each block one read of h [N, in] f32 from L2, as much as its weights at 8
// rows, so these kernels take at most 8 rows.
#pragma once
#include "contract.cuh"
#include "rms_norm.cuh"

// Up to 8 rows h [N, in] and the gain of their norm; r: 1/rms of each row, in shared memory.
struct NormedRows {
  static constexpr bool COPIED = false;
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
// What is loaded before the weights, which would delay it: the values of the first row of which the warp computes 1/rms, if
// they are at most 1024, and of the warp's chunk the gain of a lane's eight columns and those of the first row.
struct EarlyColumns {
  float row[32];
  float4 gain[2], h[2];
};
XT_DEV EarlyColumns load_early(const NormedRows& x, uint32_t n0, uint32_t m, uint32_t width, uint32_t at) {
  EarlyColumns early = {};
  const uint32_t warp = threadIdx.x / 32;
  if (warp < m && width <= 1024) lane_load(early.row, x.h + (size_t)(n0 + warp) * width, width, threadIdx.x % 32);
  const uint32_t k = at + threadIdx.x % 32 * 8;
  if (k + 8 <= width && (width & 7) == 0) {
    const float *h = x.h + (size_t)n0 * width + k, *gain = x.gain + k;
#pragma unroll
    for (int q = 0; q < 2; q++) {
      early.gain[q] = *reinterpret_cast<const float4*>(gain + 4 * q);
      early.h[q] = *reinterpret_cast<const float4*>(h + 4 * q);
    }
  }
  return early;
}

XT_DEV void compute_rms(const NormedRows& x, const EarlyColumns& early, uint32_t n0, uint32_t m, uint32_t width) {
  const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  if (warp < m) {  // a block has a warp for each row
    float squares = width <= 1024 ? lane_sum_squares(early.row)
                                  : lane_sum_squares(x.h + (size_t)(n0 + warp) * width, width, lane);
    float r = inverse_rms(squares, width, x.eps);
    if (lane == 0) x.r[warp] = r;
  }
  __syncthreads();
}

XT_DEV float4 scaled(const float4& h, float r, const float4& g) {
  return make_float4((h.x * r) * g.x, (h.y * r) * g.y, (h.z * r) * g.z, (h.w * r) * g.w);
}

// A block has as many lines as rows.
XT_DEV void load_rows(const NormedRows& x, const EarlyColumns& early, bf16* s, uint32_t lines, uint32_t n0, uint32_t,
                      uint32_t width, uint32_t at) {
  uint32_t lane = threadIdx.x & 31, n = min(256u, width - at), padded = (n + 15) / 16 * 16, k = lane * 8;
  if (k >= padded) return;
  const bool vector = k < n && (width & 7) == 0;
  for (uint32_t first = 0; first < lines; first += 4) {
    float4 v[4][2] = {};
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      const uint32_t line = first + i;
      if (line >= lines) continue;
      const float* h = x.h + (size_t)(n0 + line) * width + at + k;
      if (vector) {
        v[i][0] = line ? *reinterpret_cast<const float4*>(h) : early.h[0];
        v[i][1] = line ? *reinterpret_cast<const float4*>(h + 4) : early.h[1];
      } else {
        float* to = &v[i][0].x;
#pragma unroll
        for (uint32_t e = 0; e < 8; e++)
          if (k + e < n) to[e] = h[e];
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      const uint32_t line = first + i;
      if (line >= lines) continue;
      const float r = x.r[XT_FAULT(ScaleOfFirstNormedRow) ? 0 : line];
      float4 gain[2] = {early.gain[0], early.gain[1]};
      if (!vector) {
        float* to = &gain[0].x;
#pragma unroll
        for (uint32_t e = 0; e < 8; e++) to[e] = k + e < n ? x.gain[at + k + e] : 0.0f;
      }
      const float4 a = scaled(v[i][0], r, gain[0]), b = scaled(v[i][1], r, gain[1]);
      *reinterpret_cast<uint4*>(s + line * 264 + k) =
          make_uint4(xt_pack_bf16(a.x, a.y), xt_pack_bf16(a.z, a.w), xt_pack_bf16(b.x, b.y), xt_pack_bf16(b.z, b.w));
    }
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
