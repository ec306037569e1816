// Gate and up projections as the weight operand of the skinny kernels.
#pragma once
#include "linear_chunks.cuh"
#include "linear_skinny_bf16.cuh"

// ---- bf16: weight rows 0 .. 7 gate, 8 .. 15 up
struct SwiGluWeights {
  const bf16 *gate, *up;
  SwiGluEpilogue<bf16> out;
  uint32_t outs;
};
XT_DEV const bf16* weight_line(const SwiGluWeights& w, uint32_t line, uint32_t width) {
  uint32_t o = blockIdx.y * 8 + line % 8;
  return o < w.outs ? (line < 8 ? w.gate : w.up) + (size_t)o * width : nullptr;
}
XT_DEV void load_weights(const SwiGluWeights& w, bf16* s, uint32_t width, uint32_t at) {
  uint32_t o0 = blockIdx.y * 8;
  load_chunk_rows<8>(s, w.gate + (size_t)o0 * width, w.outs - o0, width, at);
  load_chunk_rows<8>(s + 8 * 264, w.up + (size_t)o0 * width, w.outs - o0, width, at);
}
XT_DEV void store_outputs(const SwiGluWeights& w, const float* total, uint32_t values, uint32_t n0, uint32_t rows) {
  for (uint32_t i = threadIdx.x; i < values / 2; i += blockDim.x) {
    uint32_t line = i % 8, o = blockIdx.y * 8 + line, n = n0 + i / 8;
    if (o >= w.outs || n >= rows) continue;
    const float* sums = total + i / 8 * 16 + line;
    w.out.y[(size_t)n * w.outs + o] = swiglu_of(w.out, sums[0], sums[8], o).y;
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
