// silu_mul     y = (g / (1 + exp(-g))) u, element-wise
// Launch: one thread per four consecutive elements, 256 threads per block. CPU twin: cpu/pointwise.rs.

#include "silu_mul.cuh"
#include "vec4.cuh"

template <class T, class O> XT_DEV void silu_mul_four(const T* g, const T* u, O* y, uint64_t n) {
  uint64_t at = 4 * ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x);
  if (at + 4 <= n) {
    Vec4<T> a = load4(g + at), b = load4(u + at);
    Vec4<O> out;
    float x[4], q[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = load(a.v + i);
    silu_of(x, q);
#pragma unroll
    for (int i = 0; i < 4; i++) store(out.v + i, q[i] * load(b.v + i));
    store4(y + at, out);
  } else {
    for (; at < n; at++) store(y + at, silu_mul_of(load(g + at), load(u + at)));
  }
}

#define SILU_MUL(name, T, O)                                                                                         \
  XT_KERNEL(name, 256)(const T* g, const T* u, O* y, uint64_t n) {                                                   \
    xt_grid_dependency_sync();                                                                                       \
    silu_mul_four(g, u, y, n);                                                                                       \
  }                                                                                                                  \
  XT_EXPORT(name)
SILU_MUL(silu_mul_f32_f32, float, float)
SILU_MUL(silu_mul_f32_bf16, float, bf16)
SILU_MUL(silu_mul_bf16_f32, bf16, float)
SILU_MUL(silu_mul_bf16_bf16, bf16, bf16)
#undef SILU_MUL

// silu_mul_backward    q = 1 / (1 + exp(-g));  du = dy (g q);  dg = (dy u) (q fma(g, 1 - q, 1))
// Launch: as silu_mul.

template <class T, class O>
XT_DEV void silu_mul_backward_four(const T* g, const T* u, const float* dy, O* dg, O* du, uint64_t n) {
  uint64_t at = 4 * ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x);
  if (at + 4 <= n) {
    Vec4<T> a = load4(g + at), b = load4(u + at);
    Vec4<float> d = load4(dy + at);
    Vec4<O> og, ou;
    float x[4], q[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = load(a.v + i);
    sigmoid_of(x, q);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      SiluGradient one = silu_mul_gradient(x[i], q[i], load(b.v + i), d.v[i]);
      store(og.v + i, one.g);
      store(ou.v + i, one.u);
    }
    store4(dg + at, og);
    store4(du + at, ou);
  } else {
    for (; at < n; at++) {
      SiluGradient one = silu_mul_backward_of(load(g + at), load(u + at), dy[at]);
      store(dg + at, one.g);
      store(du + at, one.u);
    }
  }
}

#define SILU_MUL_BACKWARD(name, T, O)                                                                                \
  XT_KERNEL(name, 256)(const T* g, const T* u, const float* dy, O* dg, O* du, uint64_t n) {                          \
    xt_grid_dependency_sync();                                                                                       \
    silu_mul_backward_four(g, u, dy, dg, du, n);                                                                     \
  }                                                                                                                  \
  XT_EXPORT(name)
SILU_MUL_BACKWARD(silu_mul_backward_f32_f32, float, float)
SILU_MUL_BACKWARD(silu_mul_backward_f32_bf16, float, bf16)
SILU_MUL_BACKWARD(silu_mul_backward_bf16_f32, bf16, float)
SILU_MUL_BACKWARD(silu_mul_backward_bf16_bf16, bf16, bf16)
#undef SILU_MUL_BACKWARD
