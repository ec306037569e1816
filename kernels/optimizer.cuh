// The parameter table of a model in walk order, one entry per tensor, written by gpu/optim.rs and read by the
// optimizer's kernels.
#pragma once
#include "table.cuh"

struct alignas(8) Parameter {
  float* w;             // values; null when only the norm is computed
  const float* g;       // gradient
  float* m;             // first moment
  float* v;             // second moment
  uint64_t n;           // elements
  uint32_t width;       // row length; a vector is one row
  uint32_t decayed;     // 1: weight decay applies (matrices), 0: gains and biases
  uint32_t block;       // first block of adamw for this tensor
  uint32_t rows_block;  // first block of row_squares for this tensor
  uint32_t row;         // index of its first row sum
  uint32_t rows;        // number of rows
};

// Gradient clipping. norm_total writes the sum of squares, the norm, the clip factor and finite (1 if the norm is
// finite, else 0); adamw sets overflowed to a nonzero value if an updated parameter is not finite.
struct ClipState {
  float squares, norm, clip, finite;
  uint32_t overflowed;
};
