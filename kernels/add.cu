// add          y[i] = a[i] + b[i]
// accumulate   a[i] = a[i] + b[i]
// Launch: one thread per element, 256 threads per block. Order: element-wise. CPU twin: cpu/pointwise.rs.
#include "xt.cuh"

XT_KERNEL(add_f32, 256)(const float* a, const float* b, float* y, uint32_t n) {
  xt_grid_dependency_sync();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a[i] + b[i];
}
XT_EXPORT(add_f32)

XT_KERNEL(accumulate_f32, 256)(float* a, const float* b, uint32_t n) {
  xt_grid_dependency_sync();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) a[i] = a[i] + b[i];
}
XT_EXPORT(accumulate_f32)
