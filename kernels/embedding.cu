// embedding    y[n] = w[id[n]] in f32 (bf16 variant: rounded to bf16, then widened)      w [V, C], id [N] -> y [N, C]
// Launch: one block per row, threads over the columns. Order: element-wise. CPU twin: cpu/embedding.rs.
#include "contract.cuh"

template <bool ROUND> XT_DEV void embedding_row(const float* w, const uint32_t* id, float* y, uint32_t c) {
  const float* row = w + (size_t)id[blockIdx.x] * c;
  float* out = y + (size_t)blockIdx.x * c;
  for (uint32_t i = threadIdx.x; i < c; i += blockDim.x) out[i] = ROUND ? from_bf16(to_bf16(row[i])) : row[i];
}

XT_KERNEL(embedding_f32, 256)(const float* w, const uint32_t* id, float* y, uint32_t c) {
  embedding_row<false>(w, id, y, c);
}
XT_EXPORT(embedding_f32)

XT_KERNEL(embedding_bf16, 256)(const float* w, const uint32_t* id, float* y, uint32_t c) {
  embedding_row<true>(w, id, y, c);
}
XT_EXPORT(embedding_bf16)

// table_rows   y[n] = w[id[n]], widened to f32                       w [V, C] bf16, id [N] -> y [N, C] f32
// Launch: as embedding. CPU twin: cpu/embedding.rs, weight_rows.
XT_KERNEL(table_rows_bf16, 256)(const bf16* w, const uint32_t* id, float* y, uint32_t c) {
  const bf16* row = w + (size_t)id[blockIdx.x] * c;
  float* out = y + (size_t)blockIdx.x * c;
  for (uint32_t i = threadIdx.x; i < c; i += blockDim.x) out[i] = load(row + i);
}
XT_EXPORT(table_rows_bf16)

// embedding_backward    dw[id[n]] = dw[id[n]] + dy[n], rows in ascending order
// Launch: one thread per column, iterating over all rows: no two threads write the same element, so no atomics.
XT_KERNEL(embedding_backward_f32, 32)(float* dw, const uint32_t* id, const float* dy, uint32_t rows, uint32_t c) {
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= c) return;
  for (uint32_t n = 0; n < rows; n++) {
    size_t at = (size_t)id[n] * c + i;
    dw[at] = dw[at] + dy[(size_t)n * c + i];
  }
}
XT_EXPORT(embedding_backward_f32)
