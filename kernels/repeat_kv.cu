// repeat_kv             y[n][h] = x[n][h / group]                           x [N, nkv, hd] -> y [N, nkv group, hd]
// repeat_kv_backward    dx[n][g] = sum of the group's dy, heads ascending, from +0    dy [N, nkv group, hd] -> dx [N,
//   nkv, hd]
// Launch: one thread per output element. Not on the hot path, which indexes the KV head. CPU twin: reference/rows.rs.
#include "xt.cuh"

XT_KERNEL(repeat_kv_f32, 256)(const float* x, float* y, uint32_t group, uint32_t hd, uint32_t n) {
  xt_grid_dependency_sync();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[(size_t)(i / (group * hd)) * hd + i % hd];
}
XT_EXPORT(repeat_kv_f32)

XT_KERNEL(repeat_kv_backward_f32, 256)(const float* dy, float* dx, uint32_t group, uint32_t hd, uint32_t n) {
  xt_grid_dependency_sync();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float sum = 0.0f;
  for (uint32_t h = 0; h < group; h++) sum = sum + dy[((size_t)(i / hd) * group + h) * hd + i % hd];
  dx[i] = sum;
}
XT_EXPORT(repeat_kv_backward_f32)
