// The skinny bf16 product; see linear_skinny_bf16.cu for launch geometry and order. Rows and Weights are operand
// policies: compute_rms (prologue), load_rows; load_weights, store_outputs (epilogue).
#pragma once
#include "linear_chunks.cuh"

// Copies one chunk of `lines` rows to shared memory, pitch 264 elements; rows and columns out of range are
// zero-filled.
XT_DEV void load_chunk_rows(bf16* s, const bf16* g, uint32_t lines, uint32_t in_range, uint32_t width, uint32_t at) {
  uint32_t lane = threadIdx.x & 31, n = min(256u, width - at), padded = (n + 15) / 16 * 16;
  bool vector = (width & 7) == 0;
  for (uint32_t line = 0; line < lines; line++) {
    uint32_t k = lane * 8;
    if (k >= padded) continue;
    uint32_t left = line < in_range && k < n ? min(8u, n - k) : 0;
    const bf16* from = left ? g + (size_t)line * width + at + k : g;
    bf16* to = s + line * 264 + k;
    if (vector) {
      xt_cp_async16(to, from, left != 0);
      continue;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) to[i].u = i < left ? from[i].u : (uint16_t)0;
  }
}

// The rows x [N, in] as they are: no prologue.
struct PlainRows {
  const bf16* x;
};
XT_DEV void compute_rms(const PlainRows&, uint32_t, uint32_t, uint32_t, uint32_t) {}
XT_DEV void load_rows(const PlainRows& x, bf16* s, uint32_t lines, uint32_t n0, uint32_t rows, uint32_t width,
                      uint32_t at) {
  load_chunk_rows(s, x.x + (size_t)n0 * width, lines, rows - n0, width, at);
}

// The weights w [out, in] of a block: outputs o0 .. o0 + 15.
struct PlainWeights {
  const bf16* w;
  Epilogue out;
  uint32_t o0, outs;
};
XT_DEV void load_weights(const PlainWeights& w, bf16* s, uint32_t width, uint32_t at) {
  load_chunk_rows(s, w.w + (size_t)w.o0 * width, 16, w.outs - w.o0, width, at);
}
XT_DEV void store_outputs(const PlainWeights& w, const float* total, uint32_t values, uint32_t n0, uint32_t rows) {
  for (uint32_t i = threadIdx.x; i < values; i += blockDim.x) {
    uint32_t o = w.o0 + i % 16, n = n0 + i / 16;
    if (o < w.outs && n < rows) store_output(w.out, total[i], o, (size_t)n * w.outs + o);
  }
}

template <int T, class Rows, class Weights>
XT_DEV void skinny_bf16(const Rows& x, const Weights& w, uint32_t rows, uint32_t width) {
  const uint32_t ROWS = 8 * T, VALUES = 16 * ROWS;
  XT_DYN_SHARED(float, total);  // [row][output], then the same per warp (its chunk)
  uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x / 32;
  uint32_t n0 = blockIdx.x * ROWS, chunks = (width + 255) / 256, lines = min(ROWS, rows);
  float* part = total + VALUES;
  bf16* ws = reinterpret_cast<bf16*>(part + warps * VALUES) + warp * (16 + lines) * 264;
  bf16* xs = ws + 16 * 264;
  for (uint32_t i = threadIdx.x; i < VALUES; i += blockDim.x) total[i] = 0.0f;
  for (uint32_t first = 0; first < chunks; first += warps) {
    uint32_t at = (first + warp) * 256;
    bool active = at < width;
    if (active) {
      load_weights(w, ws, width, at);
      xt_cp_commit();
    }
    if (first == 0) compute_rms(x, lines, n0, rows, width);  // overlaps with the weight copies
    if (active) {
      load_rows(x, xs, lines, n0, rows, width, at);
      xt_cp_commit();
      xt_cp_wait<0>();
      __syncwarp();
      float c[T][4];
#pragma unroll
      for (int t = 0; t < T; t++) c[t][0] = c[t][1] = c[t][2] = c[t][3] = 0.0f;
#pragma unroll 4
      for (uint32_t k = 0; k < min(256u, width - at); k += 16) {
        uint32_t a[4];
        xt_ldmatrix_x4(a, ws + (lane & 15) * 264 + k + (lane >> 4) * 8);
#pragma unroll
        for (int t = 0; t < T; t++) {
          uint32_t b[2] = {0, 0}, line = 8 * t + (lane >> 2);
          if (line < lines) {
            const bf16* at = xs + line * 264 + k + (lane & 3) * 2;
            b[0] = *reinterpret_cast<const uint32_t*>(at), b[1] = *reinterpret_cast<const uint32_t*>(at + 8);
          }
          xt_mma_bf16_16816(c[t], a, b);
        }
      }
#pragma unroll
      for (int t = 0; t < T; t++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          part[warp * VALUES + (8 * t + (lane & 3) * 2 + e % 2) * 16 + (lane >> 2) + e / 2 * 8] = c[t][e];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < VALUES; i += blockDim.x)
      for (uint32_t j = 0; j < min(warps, chunks - first); j++) total[i] = total[i] + part[j * VALUES + i];
    __syncthreads();
  }
  store_outputs(w, total, VALUES, n0, rows);
}
