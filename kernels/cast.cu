// cast         y[i] = x[i]: f32 to bf16 rounds to nearest even, bf16 to f32 is exact
// Launch: one thread per eight elements, 256 threads per block. Order: element-wise. CPU twin: Tensor::cast.
#include "contract.cuh"
#include "vec4.cuh"

template <class T, class O> XT_DEV void cast_eight(const T* x, O* y, uint64_t n) {
  uint64_t at = 8 * ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x);
  if (at + 8 <= n) {
    Vec4<T> v[2] = {load4(x + at), load4(x + at + 4)};
    Vec4<O> out[2];
#pragma unroll
    for (int i = 0; i < 8; i++) store(out[i / 4].v + i % 4, load(v[i / 4].v + i % 4));
    store4(y + at, out[0]);
    store4(y + at + 4, out[1]);
  } else {
    for (; at < n; at++) store(y + at, load(x + at));
  }
}

XT_KERNEL(cast_f32_bf16, 256)(const float* x, bf16* y, uint64_t n) {
  xt_grid_dependency_sync();
  cast_eight(x, y, n);
}
XT_EXPORT(cast_f32_bf16)

XT_KERNEL(cast_bf16_f32, 256)(const bf16* x, float* y, uint64_t n) {
  xt_grid_dependency_sync();
  cast_eight(x, y, n);
}
XT_EXPORT(cast_bf16_f32)
