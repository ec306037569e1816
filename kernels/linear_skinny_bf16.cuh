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

// The rows x [N, in] as they are: no prologue.
struct PlainRows {
  const bf16* x;
};
XT_DEV void compute_rms(const PlainRows&, uint32_t, uint32_t, uint32_t, uint32_t) {}
XT_DEV void load_rows(const PlainRows& x, bf16* s, uint32_t lines, uint32_t n0, uint32_t rows, uint32_t width,
                      uint32_t at) {
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
XT_DEV void store_outputs(const PlainWeights& w, const float* total, uint32_t values, uint32_t n0, uint32_t rows) {
  for (uint32_t i = threadIdx.x; i < values; i += blockDim.x) {
    uint32_t o = w.o0 + i % 16, n = n0 + i / 16;
    if (o < w.outs && n < rows) store_output(w.out, total[i], o, (size_t)n * w.outs + o);
  }
}

// Blocks along z that share an output tile, each with its own chunks of k: they write the sums of their chunks to
// parts [tile, chunk, row, 16], and the last of them adds all chunks in ascending order. Each has at least one chunk.
struct ChunkGroups {
  float* parts;        // null: one block computes all chunks
  uint32_t* counters;  // one counter per tile, zero at launch
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
  for (uint32_t line = threadIdx.x / 32; line < 16; line += blockDim.x / 32)
    if (const bf16* row = weight_line(w, line, width))
      for (uint32_t k = chunks.x * 256 + threadIdx.x % 32 * 64; k < min(chunks.y * 256, width); k += 32 * 64)
        xt_prefetch_l2(row + k);  // 128 bytes
}

template <int T, class Rows, class Weights>
XT_DEV void skinny_bf16(const Rows& x, const Weights& w, uint32_t rows, uint32_t width, const ChunkGroups& groups) {
  const uint32_t ROWS = 8 * T, VALUES = 16 * ROWS;
  XT_DYN_SHARED(float, total);  // [row][output], then the same per warp (its chunk)
  uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x / 32;
  uint32_t n0 = blockIdx.x * ROWS, chunks = (width + 255) / 256, lines = min(ROWS, rows);
  const uint2 own = chunks_of_block(width);
  const uint32_t tile = blockIdx.y * gridDim.x + blockIdx.x, used = 16 * lines;
  float *part = total + VALUES, *parts = groups.parts ? groups.parts + (size_t)tile * chunks * used : nullptr;
  bf16* ws = reinterpret_cast<bf16*>(part + warps * VALUES) + warp * (16 + lines) * 264;
  bf16* xs = ws + 16 * 264;
  for (uint32_t i = threadIdx.x; i < VALUES; i += blockDim.x) total[i] = 0.0f;
  for (uint32_t first = own.x; first < own.y; first += warps) {
    uint32_t at = (first + warp) * 256;
    bool active = first + warp < own.y;
    if (active) {
      load_weights(w, ws, width, at);
      xt_cp_commit();
    }
    if (first == own.x) compute_rms(x, lines, n0, rows, width);  // overlaps with the weight copies
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
    for (uint32_t j = 0; j < min(warps, own.y - first); j++)
      for (uint32_t i = threadIdx.x; i < used; i += blockDim.x) {
        float sum = part[j * VALUES + i];
        if (parts)
          parts[(size_t)(first + j) * used + i] = sum;
        else
          total[i] = total[i] + sum;
      }
    __syncthreads();
  }
  if (parts) {
    if (!xt_last_block(groups.counters + tile, gridDim.z)) return;
    for (uint32_t i = threadIdx.x; i < used; i += blockDim.x) {
      float sum = 0.0f;
      in_flight<8>(
          0u, chunks, 1u,
          [=](uint32_t c) { return parts[(size_t)(XT_FAULT(ChunkGroupsReversed) ? chunks - 1 - c : c) * used + i]; },
          [&](uint32_t, float v) { sum = sum + v; });
      total[i] = sum;
    }
    __syncthreads();
  }
  store_outputs(w, total, VALUES, n0, rows);
}
