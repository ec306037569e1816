// The skinny bf16 product; see linear_skinny_bf16.cu for launch geometry and order. Rows and Weights are operand
// policies: compute_rms (prologue), load_rows; weight_line, load_weights, store_outputs (epilogue).
#pragma once
#include "linear_chunks.cuh"

// Copies one chunk of LINES rows to shared memory, pitch 264 elements; rows and columns out of range are zero-filled.
// A whole chunk has no test per row: these few instructions precede all arithmetic of a product of one row.
template <uint32_t LINES>
XT_DEV void load_chunk_rows(bf16* s, const bf16* g, uint32_t in_range, uint32_t width, uint32_t at) {
  const uint32_t lane = threadIdx.x & 31, k = lane * 8, n = min(256u, width - at), padded = (n + 15) / 16 * 16;
  const bool vector = (width & 7) == 0;
  bf16* to = s + k;
  if (vector && n == 256 && in_range >= LINES) {
    const bf16* from = g + at + k;
#pragma unroll
    for (uint32_t line = 0; line < LINES; line++) xt_cp_async16(to + line * 264, from + (size_t)line * width);
    return;
  }
  if (k >= padded) return;
  for (uint32_t line = 0; line < LINES; line++) {
    uint32_t left = line < in_range && k < n ? min(8u, n - k) : 0;
    const bf16* from = left ? g + (size_t)line * width + at + k : g;
    if (vector) {
      xt_cp_async16(to + line * 264, from, left != 0);
      continue;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) to[line * 264 + i].u = i < left ? from[i].u : (uint16_t)0;
  }
}

// The rows x [N, in] as they are: no prologue. They are copied before the weights, which are more.
struct PlainRows {
  static constexpr bool COPIED = true;
  const bf16* x;
};
struct NothingEarly {};
XT_DEV NothingEarly load_early(const PlainRows&, uint32_t, uint32_t, uint32_t, uint32_t) { return {}; }
XT_DEV void compute_rms(const PlainRows&, const NothingEarly&, uint32_t, uint32_t, uint32_t) {}
XT_DEV void load_rows(const PlainRows& x, const NothingEarly&, bf16* s, uint32_t lines, uint32_t n0, uint32_t rows,
                      uint32_t width, uint32_t at) {
  const bf16* from = x.x + (size_t)n0 * width;
  if (lines % 8 == 0) {
    for (uint32_t line = 0; line < lines; line += 8)
      load_chunk_rows<8>(s + line * 264, from + (size_t)line * width, rows > n0 + line ? rows - n0 - line : 0, width,
                         at);
  } else {
    for (uint32_t line = 0; line < lines; line++)
      load_chunk_rows<1>(s + line * 264, from + (size_t)line * width, 1, width, at);
  }
}

// The weights w [out, in] of a block: outputs o0 .. o0 + 15.
struct PlainWeights {
  static constexpr int TILES = 1;
  const bf16* w;
  Epilogue out;
  uint32_t o0, outs;
};
// Row `line` of the block's weights; nullptr if out of range.
XT_DEV const bf16* weight_line(const PlainWeights& w, uint32_t line, uint32_t width) {
  return w.o0 + line < w.outs ? w.w + (size_t)(w.o0 + line) * width : nullptr;
}
XT_DEV void load_weights(const PlainWeights& w, bf16* s, uint32_t width, uint32_t at) {
  load_chunk_rows<16>(s, w.w + (size_t)w.o0 * width, w.outs - w.o0, width, at);
}
// The residuals of the outputs that a thread stores, loaded before the product: they would follow it by a round trip.
template <int S>
XT_DEV void load_residuals(float (&h)[S], const PlainWeights& w, uint32_t values, uint32_t n0, uint32_t rows) {
  if (!w.out.h) return;
#pragma unroll
  for (int s = 0; s < S; s++) {
    uint32_t i = threadIdx.x + s * blockDim.x, o = w.o0 + i % 16, n = n0 + i / 16;
    h[s] = i < values && o < w.outs && n < rows ? w.out.h[(size_t)n * w.outs + o] : 0.0f;
  }
}
template <int S>
XT_DEV void store_outputs(const PlainWeights& w, const float* total, const float (&h)[S], uint32_t values,
                          uint32_t n0, uint32_t rows) {
#pragma unroll
  for (int s = 0; s < S; s++) {
    uint32_t i = threadIdx.x + s * blockDim.x, o = w.o0 + i % 16, n = n0 + i / 16;
    if (i >= values || o >= w.outs || n >= rows) continue;
    float sum = total[i];
    if (w.out.bias) sum = sum + w.out.bias[o];
    if (w.out.h) sum = residual_of(h[s]) + sum;
    size_t at = (size_t)n * w.outs + o;
    if (w.out.y_bf16)
      store(w.out.y_bf16 + at, sum);
    else
      w.out.y[at] = sum;
  }
}

// Blocks along z that share an output tile, each with its own chunks of k: they write the sums of their chunks to
// parts [tile, chunk, row, 16], and the last of them adds all chunks in ascending order. Each has at least one chunk.
struct ChunkGroups {
  float* parts;          // null: one block computes all chunks
  uint32_t* counters;    // one counter per tile, zero at launch
  uint32_t multipliers;  // warps of a block that multiply: shared memory has a chunk for each
};

// The chunks of this block: first, end.
XT_DEV uint2 chunks_of_block(uint32_t width) {
  uint32_t chunks = (width + 255) / 256;
  if (gridDim.z == 1) return {0, chunks};
  uint32_t each = (chunks + gridDim.z - 1) / gridDim.z;
  return {min(blockIdx.z * each, chunks), min((blockIdx.z + 1) * each, chunks)};
}

// Brings the weights of this block to L2, before it waits for the previous kernel.
template <class Weights> XT_DEV void prefetch_weights(const Weights& w, uint32_t width) {
  const uint2 chunks = chunks_of_block(width);
  for (uint32_t line = threadIdx.x / 32; line < 16 * Weights::TILES; line += blockDim.x / 32)
    if (const bf16* row = weight_line(w, line, width))
      for (uint32_t k = chunks.x * 256 + threadIdx.x % 32 * 64; k < min(chunks.y * 256, width); k += 32 * 64)
        xt_prefetch_l2(row + k);  // 128 bytes
}

// c[a][t] = the products of one chunk of n <= 256 k: 16 TILES weight rows (ws) by 8 T rows (xs, `lines` of them present).
template <int TILES, int T>
XT_DEV void multiply_chunk(float (&c)[TILES][T][4], const bf16* ws, const bf16* xs, uint32_t lines, uint32_t n) {
  const uint32_t lane = threadIdx.x & 31;
  // Operand rows of the lane in one load: eight rows of 32 k if T = 1, otherwise 16 rows of 16 k. Of an absent row, the
  // last one is read: its results are not stored.
  const uint32_t line = T == 1 ? lane % 8 : lane / 16 * 8 + lane % 8;
  constexpr uint32_t DEPTH = T == 1 ? 32 : 16;
#pragma unroll 4
  for (uint32_t k = 0; k < n; k += DEPTH) {
    uint32_t b[(T + 1) / 2][4];
    const bool whole = k + DEPTH <= (n + 15) / 16 * 16;
#pragma unroll
    for (uint32_t p = 0; p < (T + 1) / 2; p++) {
      uint32_t column = T == 1 ? lane / 8 * 8 : lane / 8 % 2 * 8;
      if (T == 1 && !whole) column = column % 16;
      xt_ldmatrix_x4(b[p], xs + min(16 * p + line, lines - 1) * 264 + k + column);
    }
#pragma unroll
    for (uint32_t half = 0; half < DEPTH; half += 16) {
      if (half && !whole) break;
#pragma unroll
      for (uint32_t i = 0; i < TILES; i++) {
        uint32_t a[4];
        xt_ldmatrix_x4(a, ws + (16 * i + lane % 16) * 264 + k + half + lane / 16 * 8);
#pragma unroll
        for (uint32_t t = 0; t < T; t++) xt_mma_bf16_16816(c[i][t], a, b[t / 2] + (T == 1 ? half / 8 : t % 2 * 2));
      }
    }
  }
}

// At least 128 threads. The warps below `multipliers` compute a chunk each.
template <int T, class Rows, class Weights>
XT_DEV void skinny_bf16(const Rows& x, const Weights& w, uint32_t rows, uint32_t width, const ChunkGroups& groups) {
  constexpr uint32_t TILES = Weights::TILES, OUTS = 16 * TILES, ROWS = 8 * T, VALUES = OUTS * ROWS, S = VALUES / 128;
  XT_DYN_SHARED(float, total);  // [row][output], then the same per multiplier (its chunk)
  const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const uint32_t n0 = blockIdx.x * ROWS, chunks = (width + 255) / 256, lines = min(ROWS, rows);
  const uint2 own = chunks_of_block(width);
  const uint32_t multipliers = groups.multipliers;
  const uint32_t tile = blockIdx.y * gridDim.x + blockIdx.x, used = OUTS * lines;
  float *part = total + VALUES, *parts = groups.parts ? groups.parts + (size_t)tile * chunks * used : nullptr;
  bf16* ws = reinterpret_cast<bf16*>(part + multipliers * VALUES) + warp * (OUTS + lines) * 264;
  bf16* xs = ws + OUTS * 264;
  float h[S], sums[S] = {};
  load_residuals(h, w, used, n0, rows);
  for (uint32_t first = own.x; first < own.y; first += multipliers) {
    const uint32_t at = (first + warp) * 256;
    const bool active = warp < multipliers && first + warp < own.y;
    const auto early = load_early(x, n0, min(lines, rows - n0), width, active ? at : width);
    if (active) {
      if (Rows::COPIED) load_rows(x, early, xs, lines, n0, rows, width, at);
      load_weights(w, ws, width, at);
      xt_cp_commit();
    }
    if (first == own.x) compute_rms(x, early, n0, min(lines, rows - n0), width);
    if (active) {
      if (!Rows::COPIED) load_rows(x, early, xs, lines, n0, rows, width, at);
      xt_cp_wait<0>();
      __syncwarp();
      float c[TILES][T][4] = {};
      multiply_chunk(c, ws, xs, lines, min(256u, width - at));
#pragma unroll
      for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int t = 0; t < T; t++)
#pragma unroll
          for (int e = 0; e < 4; e++)
            part[warp * VALUES + (8 * t + (lane & 3) * 2 + e % 2) * OUTS + 16 * i + (lane >> 2) + e / 2 * 8] =
                c[i][t][e];
    }
    __syncthreads();
    for (uint32_t j = 0; j < min(multipliers, own.y - first); j++)
#pragma unroll
      for (uint32_t s = 0; s < S; s++) {
        uint32_t i = threadIdx.x + s * blockDim.x;
        if (i >= used) continue;
        float sum = part[j * VALUES + i];
        if (parts)
          parts[(size_t)(first + j) * used + i] = sum;
        else
          sums[s] = sums[s] + sum;
      }
    if (first + multipliers < own.y) __syncthreads();
  }
  if (parts) {
    if (!xt_last_block(groups.counters + tile, gridDim.z)) return;
    struct Values {
      float v[S];
    };
    in_flight<4>(
        0u, chunks, 1u,
        [=](uint32_t c) {
          Values x;
#pragma unroll
          for (uint32_t s = 0; s < S; s++) {
            uint32_t i = threadIdx.x + s * blockDim.x;
            x.v[s] = i < used ? parts[(size_t)(XT_FAULT(ChunkGroupsReversed) ? chunks - 1 - c : c) * used + i] : 0.0f;
          }
          return x;
        },
        [&](uint32_t, const Values& x) {
#pragma unroll
          for (uint32_t s = 0; s < S; s++) sums[s] = sums[s] + x.v[s];
        });
  }
#pragma unroll
  for (uint32_t s = 0; s < S; s++)
    if (threadIdx.x + s * blockDim.x < used) total[threadIdx.x + s * blockDim.x] = sums[s];
  __syncthreads();
  store_outputs(w, total, h, used, n0, rows);
}
