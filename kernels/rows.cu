// gather_rows  y[n] = x[row[n]]          x [M, W] words, row [N] -> y [N, W]
// scatter_rows pool[slot[n]] = x[n]      x [N, W], slot [N], all different -> pool [S, W]
// A word is 16, 4 or 2 bytes: the widest that divides a row. The kernels copy bits of any dtype.
// Launch: one block per (row, tile of 256 words). CPU twin: reference/rows.rs.
#include "in_flight.cuh"

template <class Word> XT_DEV void gather_row(const Word* x, const uint32_t* row, Word* y, uint32_t words) {
  uint32_t i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i < words) y[(size_t)blockIdx.x * words + i] = x[(size_t)row[blockIdx.x] * words + i];
}

template <class Word> XT_DEV void scatter_row(Word* pool, const Word* x, const uint32_t* slot, uint32_t words) {
  uint32_t i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i < words) pool[(size_t)slot[blockIdx.x] * words + i] = x[(size_t)blockIdx.x * words + i];
}

// copy_slots   to[move.to + i] = from[move.from + i] for i < move.len        move [K, 3]: from, to, len
// The ranges written overlap neither each other nor the ranges read.
// Launch: gridDim.y blocks per move, grid-stride loop over its words.
template <class Word> XT_DEV void copy_range(Word* to, const Word* from, const uint32_t* move, uint32_t words) {
  move += 3 * blockIdx.x;
  from += (size_t)move[0] * words;
  to += (size_t)move[1] * words;
  size_t n = (size_t)move[2] * words, step = (size_t)gridDim.y * blockDim.x;
  in_flight<8>((size_t)blockIdx.y * blockDim.x + threadIdx.x, n, step, [=](size_t i) { return from[i]; },
               [=](size_t i, Word word) { to[i] = word; });
}

#define ROWS(bytes, Word)                                                                                            \
  XT_KERNEL(gather_rows_##bytes, 256)(const Word* x, const uint32_t* row, Word* y, uint32_t words) {                 \
    xt_grid_dependency_sync();                                                                                       \
    gather_row(x, row, y, words);                                                                                    \
  }                                                                                                                  \
  XT_EXPORT(gather_rows_##bytes)                                                                                     \
  XT_KERNEL(scatter_rows_##bytes, 256)(Word * pool, const Word* x, const uint32_t* slot, uint32_t words) {           \
    xt_grid_dependency_sync();                                                                                       \
    scatter_row(pool, x, slot, words);                                                                               \
  }                                                                                                                  \
  XT_EXPORT(scatter_rows_##bytes)                                                                                    \
  XT_KERNEL(copy_slots_##bytes, 256)(Word * to, const Word* from, const uint32_t* move, uint32_t words) {            \
    xt_grid_dependency_sync();                                                                                       \
    copy_range(to, from, move, words);                                                                               \
  }                                                                                                                  \
  XT_EXPORT(copy_slots_##bytes)
ROWS(16, uint4)
ROWS(4, uint32_t)
ROWS(2, uint16_t)
#undef ROWS

// copy_bytes   to[i] = from[i];  zero_bytes   to[i] = 0        an even number of bytes; addresses are 16-byte aligned
// Launch: 256 threads per block, grid-stride loop over words of 16 bytes. CPU twin: Clone, Tensor::zeros.
XT_KERNEL(copy_bytes, 256)(uint4* to, const uint4* from, uint64_t bytes) {
  xt_grid_dependency_sync();
  uint64_t first = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, words = bytes / 16;
  in_flight<8>(
      first, words, (uint64_t)gridDim.x * blockDim.x, [=](uint64_t i) { return from[i]; },
      [=](uint64_t i, uint4 word) { to[i] = word; });
  if (first < bytes % 16 / 2 && !XT_FAULT(TailOfBufferNotCopied))
    ((uint16_t*)(to + words))[first] = ((const uint16_t*)(from + words))[first];
}
XT_EXPORT(copy_bytes)

XT_KERNEL(zero_bytes, 256)(uint4* to, uint64_t bytes) {
  xt_grid_dependency_sync();
  uint64_t first = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, words = bytes / 16;
  for (uint64_t i = first; i < words; i += (uint64_t)gridDim.x * blockDim.x) to[i] = {0, 0, 0, 0};
  if (first < bytes % 16 / 2) ((uint16_t*)(to + words))[first] = 0;
}
XT_EXPORT(zero_bytes)
