// cat_seq      y = concat(a, b) along the sequence: a [m values], b [n values] -> y [m + n values]
// Launch: one thread per element, 256 threads per block. Not on the hot path, which appends in place.
// CPU twin: reference/rows.rs.
#include "xt.cuh"

XT_KERNEL(cat_seq_f32, 256)(const float* a, const float* b, float* y, uint32_t m, uint32_t n) {
  xt_grid_dependency_sync();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < m + n) y[i] = i < m ? a[i] : b[i - m];
}
XT_EXPORT(cat_seq_f32)
