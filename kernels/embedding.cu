// embedding    y[n] = w[id[n]] in f32 (bf16 variant: rounded to bf16, then widened)      w [V, C], id [N] -> y [N, C]
// Launch: one block per row, threads over the columns. Order: element-wise. CPU twin: cpu/embedding.rs.
#include "in_flight.cuh"

template <bool ROUND> XT_DEV void embedding_row(const float* w, const uint32_t* id, float* y, uint32_t c) {
  const float* row = w + (size_t)id[blockIdx.x] * c;
  float* out = y + (size_t)blockIdx.x * c;
  in_flight<8>((uint32_t)threadIdx.x, c, (uint32_t)blockDim.x, [=](uint32_t i) { return row[i]; },
               [=](uint32_t i, float v) { out[i] = ROUND ? from_bf16(to_bf16(v)) : v; });
}

XT_KERNEL(embedding_f32, 256)(const float* w, const uint32_t* id, float* y, uint32_t c) {
  xt_grid_dependency_sync();
  embedding_row<false>(w, id, y, c);
}
XT_EXPORT(embedding_f32)

XT_KERNEL(embedding_bf16, 256)(const float* w, const uint32_t* id, float* y, uint32_t c) {
  xt_grid_dependency_sync();
  embedding_row<true>(w, id, y, c);
}
XT_EXPORT(embedding_bf16)

// table_rows   y[n] = w[id[n]], widened to f32                       w [V, C] bf16, id [N] -> y [N, C] f32
// Launch: as embedding. CPU twin: cpu/embedding.rs, weight_rows.
XT_KERNEL(table_rows_bf16, 256)(const bf16* w, const uint32_t* id, float* y, uint32_t c) {
  xt_grid_dependency_sync();
  const bf16* row = w + (size_t)id[blockIdx.x] * c;
  float* out = y + (size_t)blockIdx.x * c;
  in_flight<8>((uint32_t)threadIdx.x, c, (uint32_t)blockDim.x, [=](uint32_t i) { return load(row + i); },
               [=](uint32_t i, float v) { out[i] = v; });
}
XT_EXPORT(table_rows_bf16)

// embedding_backward    dw[id[n]] = dw[id[n]] + dy[n], rows in ascending order
//                       order [N]: the rows by id, those of one id in ascending order. end [N]: at the first row of an
//                       id, where its rows end in `order`; 0 at the others         dw [V, C], id [N], dy [N, C]
// Launch: one block per (index in `order`, tile of columns), one thread per column. A block at the first row of an id
//   adds all rows of the id; the other blocks return. No two threads write the same element, so no atomics.
XT_KERNEL(embedding_backward_f32, 128)(float* dw, const uint32_t* id, const uint32_t* order, const uint32_t* end,
                                       const float* dy, uint32_t c) {
  xt_grid_dependency_sync();
  uint32_t first = blockIdx.x, last = end[first], i = blockIdx.y * blockDim.x + threadIdx.x;
  if (last == 0 || i >= c) return;
  float* out = dw + (size_t)id[order[first]] * c + i;
  float sum = *out;
  in_flight<8>(
      first, last, 1u,
      [=](uint32_t n) { return dy[(size_t)order[XT_FAULT(RowsOfAnIdReversed) ? first + last - 1 - n : n] * c + i]; },
      [&](uint32_t, float v) { sum = sum + v; });
  *out = sum;
}
XT_EXPORT(embedding_backward_f32)
