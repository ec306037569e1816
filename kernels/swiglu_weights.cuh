// Gate and up projections as the weight operand of the skinny kernels.
#pragma once
#include "linear_chunks.cuh"
#include "linear_skinny_bf16.cuh"

// ---- bf16: the first half of a block's 16 N weight rows gate, the second half up
template <int N> struct SwiGluWeights {
  static constexpr int TILES = N;
  const bf16 *gate, *up;
  SwiGluEpilogue<bf16> out;
  uint32_t outs;
};
template <int N> XT_DEV const bf16* weight_line(const SwiGluWeights<N>& w, uint32_t line, uint32_t width) {
  uint32_t o = blockIdx.y * 8 * N + line % (8 * N);
  return o < w.outs ? (line < 8 * N ? w.gate : w.up) + (size_t)o * width : nullptr;
}
template <int N> XT_DEV void load_weights(const SwiGluWeights<N>& w, bf16* s, uint32_t width, uint32_t at) {
  uint32_t o0 = blockIdx.y * 8 * N;
  load_chunk_rows<8 * N>(s, w.gate + (size_t)o0 * width, w.outs - o0, width, at);
  load_chunk_rows<8 * N>(s + 8 * N * 264, w.up + (size_t)o0 * width, w.outs - o0, width, at);
}
template <int N, int S>
XT_DEV void load_residuals(float (&)[S], const SwiGluWeights<N>&, uint32_t, uint32_t, uint32_t) {}
template <int N, int S>
XT_DEV void store_outputs(const SwiGluWeights<N>& w, const float* total, const float (&)[S], uint32_t values,
                          uint32_t n0, uint32_t rows) {
#pragma unroll
  for (uint32_t s = 0; s < (S + 1) / 2; s++) {
    uint32_t i = threadIdx.x + s * blockDim.x, line = i % (8 * N), o = blockIdx.y * 8 * N + line,
             n = n0 + i / (8 * N);
    if (i >= values / 2 || o >= w.outs || n >= rows) continue;
    const float* sums = total + i / (8 * N) * 16 * N + line;
    w.out.y[(size_t)n * w.outs + o] = swiglu_of(w.out, sums[0], sums[8 * N], o).y;
  }
}

// ---- f32: weight rows 0 .. 3 gate, 4 .. 7 up
struct SwiGluWeightsF32 {
  const float *gate, *up;
  SwiGluEpilogue<float> out;
  uint32_t o0, outs;
};
XT_DEV const float* weight_row(const SwiGluWeightsF32& w, uint32_t line, uint32_t width) {
  uint32_t o = w.o0 + line % 4;
  return o < w.outs ? (line < 4 ? w.gate : w.up) + (size_t)o * width : nullptr;
}
XT_DEV void store_output_f32(const SwiGluWeightsF32& w, float y, uint32_t line, uint32_t n, uint32_t rows) {
  uint32_t o = w.o0 + line % 4;
  float up = __shfl_down_sync(0xffffffffu, y, 4);
  if (line < 4 && o < w.outs && n < rows) w.out.y[(size_t)n * w.outs + o] = swiglu_of(w.out, y, up, o).y;
}
