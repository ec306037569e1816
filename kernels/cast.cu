// cast         y[i] = x[i]: f32 to bf16 rounds to nearest even, bf16 to f32 is exact
// Launch: one thread per element, 256 threads per block. Order: element-wise. CPU twin: Tensor::cast.
#include "contract.cuh"

XT_KERNEL(cast_f32_bf16, 256)(const float* x, bf16* y, uint32_t n) {
  xt_grid_dependency_sync();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = to_bf16(x[i]);
}
XT_EXPORT(cast_f32_bf16)

XT_KERNEL(cast_bf16_f32, 256)(const bf16* x, float* y, uint32_t n) {
  xt_grid_dependency_sync();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = from_bf16(x[i]);
}
XT_EXPORT(cast_bf16_f32)
