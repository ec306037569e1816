// The skinny f32 product; see linear_skinny_f32.cu for launch geometry and order. Rows and Weights are operand
// policies: compute_rms (prologue), operand_row, value, values; weight_row, store_output_f32 (epilogue).
#pragma once
#include "linear_chunks.cuh"

// The rows x [N, in] as they are: no prologue.
struct PlainRowsF32 {
  const float* x;
  struct Line {
    const float* x;
  };
};
XT_DEV void compute_rms(const PlainRowsF32&, uint32_t, uint32_t, uint32_t) {}
XT_DEV PlainRowsF32::Line operand_row(const PlainRowsF32& x, uint32_t n, uint32_t, uint32_t width, uint32_t k) {
  return {x.x + (size_t)n * width + k};
}
XT_DEV float value(const PlainRowsF32::Line& x, uint32_t k) { return x.x[k]; }
XT_DEV float4 values(const PlainRowsF32::Line& x, uint32_t k) { return *reinterpret_cast<const float4*>(x.x + k); }

// The weights w [out, in] of a block: outputs o0 .. o0 + 7.
struct PlainWeightsF32 {
  const float* w;
  Epilogue out;
  uint32_t o0, outs;
};
// Weight row of the block's output o; nullptr if out of range.
XT_DEV const float* weight_row(const PlainWeightsF32& w, uint32_t o, uint32_t width) {
  return w.o0 + o < w.outs ? w.w + (size_t)(w.o0 + o) * width : nullptr;
}
// Epilogue for the sum y of output o and row n. Called by all threads of the block.
XT_DEV void store_output_f32(const PlainWeightsF32& w, float y, uint32_t o, uint32_t n, uint32_t rows) {
  o += w.o0;
  if (o < w.outs && n < rows) store_output(w.out, y, o, (size_t)n * w.outs + o);
}

// One fma chain per row: R rows by the weights s of one output, over n values of k.
template <int R, class Line>
XT_DEV void fma_chain(const Line (&x)[R], const float* s, uint32_t n, bool vector, float (&c)[R]) {
  uint32_t k = 0;
  if (vector) {
#pragma unroll 4
    for (; k + 4 <= n; k += 4) {
      float4 w = *reinterpret_cast<const float4*>(s + k);
#pragma unroll
      for (int r = 0; r < R; r++) {
        float4 v = values(x[r], k);
        c[r] = fmaf(v.w, w.w, fmaf(v.z, w.z, fmaf(v.y, w.y, fmaf(v.x, w.x, c[r]))));
      }
    }
  }
  for (; k < n; k++)
#pragma unroll
    for (int r = 0; r < R; r++) c[r] = fmaf(value(x[r], k), s[k], c[r]);
}

template <int R, class Rows, class Weights>
XT_DEV void skinny_f32(const Rows& x, const Weights& w, uint32_t rows, uint32_t width) {
  XT_DYN_SHARED(float, weights);
  uint32_t piece = min((width + 255) / 256 * 256, 2048u), line = piece + 4;
  float* part = weights + 8 * line;  // [chunk][row][output]
  uint32_t n0 = blockIdx.y * 16, m = min(16u, rows - n0), groups = (m + R - 1) / R;
  bool vector = (width & 3) == 0;
  float y = 0.0f;
  for (uint32_t at = 0; at < width; at += piece) {
    uint32_t len = min(piece, width - at);
    for (uint32_t o = 0; o < 8; o++) {
      const float* from = weight_row(w, o, width);
      if (!from) continue;
      if (vector) {
        for (uint32_t k = threadIdx.x * 4; k < len; k += 512) xt_cp_async16(weights + o * line + k, from + at + k);
      } else {
        for (uint32_t k = threadIdx.x; k < len; k += 128) weights[o * line + k] = from[at + k];
      }
    }
    xt_cp_commit();
    if (at == 0) compute_rms(x, n0, m, width);  // overlaps with the weight copies
    xt_cp_wait<0>();
    __syncthreads();
    uint32_t o = threadIdx.x & 7, chunks = (len + 255) / 256;
    bool in_range = weight_row(w, o, width);
    for (uint32_t task = threadIdx.x >> 3; in_range && task < chunks * groups; task += 16) {
      uint32_t chunk = task / groups, r0 = task % groups * R, k = chunk * 256;
      float c[R];
      decltype(operand_row(x, 0, 0, 0, 0)) lines[R];
#pragma unroll
      for (int r = 0; r < R; r++) {
        uint32_t n = min(r0 + r, m - 1);  // clamp to the last row
        c[r] = 0.0f;
        lines[r] = operand_row(x, n0 + n, n, width, at + k);
      }
      fma_chain<R>(lines, weights + o * line + k, min(256u, len - k), vector, c);
#pragma unroll
      for (int r = 0; r < R; r++) part[(chunk * 16 + r0 + r) * 8 + o] = c[r];
    }
    __syncthreads();
    for (uint32_t chunk = 0; chunk < chunks; chunk++)
      if (threadIdx.x < m * 8 && in_range) y = y + part[chunk * 128 + threadIdx.x];
    __syncthreads();
  }
  store_output_f32(w, y, threadIdx.x & 7, n0 + (threadIdx.x >> 3), rows);
}
