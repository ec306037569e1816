// The parameters of a model in walk order, as the optimizer's kernels read them: one entry a tensor,
// written by gpu/optim.rs.
#pragma once
#include "xt.cuh"

struct alignas(8) Parameter {
  float* w;             // the values; null where only norms are taken
  const float* g;       // the gradient
  float* m;             // first moment
  float* v;             // second moment
  uint64_t n;           // elements
  uint32_t width;       // of a row; a vector is one row
  uint32_t decayed;     // 1: a matrix, 0: a gain or a bias
  uint32_t block;       // the first block that updates it
  uint32_t rows_block;  // the first block that sums its rows
  uint32_t row;         // where the sums of its rows begin
  uint32_t rows;        // how many they are
};

// What the norm tells the update: [sum of squares, norm, clip, 1 if the norm is finite]; and what the update found:
// not 0 where it made a value that is not finite.
struct ClipState {
  float squares, norm, clip, finite;
  uint32_t overflowed;
};

// The last tensor that begins at or before a block.
template <uint32_t Parameter::* START>
XT_DEV Parameter tensor_of_block(const Parameter* all, uint32_t tensors, uint32_t block) {
  uint32_t low = 0, high = tensors;
  while (high - low > 1) {
    uint32_t middle = (low + high) / 2;
    if (all[middle].*START <= block)
      low = middle;
    else
      high = middle;
  }
  return all[low];
}
