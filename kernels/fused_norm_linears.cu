// norm_linears     n = rms_norm(h);  y_i = n w_iᵀ + b_i, up to three of them  h [N, in], w_i [out_i, in] -> y_i [N, out_i]
// Launch: as linear_few for up to 8 rows: the blocks of one matrix after those of another, grid (1, blocks) in
//   bf16, (blocks, 1) in f32. An absent matrix has no outputs.
// Order: sum32 of the norm, then that of linear. CPU twin: rms_norm, linear.
#include "fused_norm_linears.cuh"
#include "linear_matrices.cuh"

template <class T>
XT_DEV void leave(const Matrices<T>& w, uint32_t part, float y, uint32_t o, uint32_t n) {
  store(output_of(w, part) + (size_t)n * outs_of(w, part) + o, finished({nullptr, bias_of(w, part), nullptr, nullptr, nullptr}, y, o, 0));
}

// ---- bf16: 16 outputs a block
XT_DEV void bring_weights(const Matrices<bf16>& w, bf16* s, uint32_t width, uint32_t at) {
  Turn3 t = turn_of(w, blockIdx.y, 16);
  bring_chunk(s, matrix(w, t.part) + (size_t)t.o0 * width, 16, outs_of(w, t.part) - t.o0, width, at);
}
XT_DEV void leave_all(const Matrices<bf16>& w, const float* total, uint32_t values, uint32_t n0, uint32_t rows) {
  Turn3 t = turn_of(w, blockIdx.y, 16);
  for (uint32_t i = threadIdx.x; i < values; i += blockDim.x) {
    uint32_t o = t.o0 + i % 16, n = n0 + i / 16;
    if (o < outs_of(w, t.part) && n < rows) leave(w, t.part, total[i], o, n);
  }
}

// ---- f32: 8 outputs a block
XT_DEV const float* weights_of(const Matrices<float>& w, uint32_t line, uint32_t width) {
  Turn3 t = turn_of(w, blockIdx.x, 8);
  uint32_t o = t.o0 + line;
  return o < outs_of(w, t.part) ? matrix(w, t.part) + (size_t)o * width : nullptr;
}
XT_DEV void leave_one(const Matrices<float>& w, float y, uint32_t line, uint32_t n, uint32_t rows) {
  Turn3 t = turn_of(w, blockIdx.x, 8);
  uint32_t o = t.o0 + line;
  if (o < outs_of(w, t.part) && n < rows) leave(w, t.part, y, o, n);
}

#define NORM_LINEARS(name, threads, blocks, T, few)                                                                                   \
  XT_KERNEL_FOR(name, threads, blocks)(const float* h, const float* gain, float eps, const T* w0, const T* w1, const T* w2,     \
                           const float* b0, const float* b1, const float* b2, T* y0, T* y1, T* y2, uint32_t rows,               \
                           uint32_t outs0, uint32_t outs1, uint32_t outs2, uint32_t width) {                                    \
    XT_SHARED(float, r, 8);                                                                                                     \
    few(NormedRows{h, gain, eps, r}, Matrices<T>{w0, w1, w2, b0, b1, b2, y0, y1, y2, outs0, outs1, outs2}, rows, width);        \
  }                                                                                                                             \
  XT_EXPORT(name)
NORM_LINEARS(norm_linears_bf16, 256, 4, bf16, few_rows_bf16<1>)
NORM_LINEARS(norm_linears_f32, 128, 2, float, few_rows<4>)
#undef NORM_LINEARS
