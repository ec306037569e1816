// linear_dx_swiglu    dy = dot over o of g[n][o] w[o][k], then the gradient of y = silu(gate) up, as silu_mul_backward
//                     g [N, out], w [out, in], gate, up [N, in] -> dgate, dup [N, in]
// Launch and order: as linear_dx; dy stays in f32. CPU twin: linear_backward_input, silu_mul_backward.
// Cost: as linear_dx; dy [N, in], the widest gradient of a layer, is neither written nor read.
#include "linear_bf16.cuh"
#include "linear_f32.cuh"

#define LINEAR_DX_SWIGLU(T, type, side, threads)                                                                     \
  XT_KERNEL(linear_dx_swiglu_##type##_##side, threads)                                                               \
  (const T* g, const T* w, const T* gate, const T* up, T* dgate, T* dup, uint32_t rows, uint32_t outs,               \
   uint32_t width) {                                                                                                 \
    xt_grid_dependency_sync();                                                                                       \
    product_##type<side, false, true>(tile_of_block(), Operand<T>{w, w, w, width}, Operand<T>{g, g, g, rows},        \
                                      UniformChunks{outs, 0, 0}, SwiGluGradientEpilogue<T>{gate, up, dgate, dup});   \
  }                                                                                                                  \
  XT_EXPORT(linear_dx_swiglu_##type##_##side)
LINEAR_DX_SWIGLU(bf16, bf16, 128, 256)
LINEAR_DX_SWIGLU(bf16, bf16, 64, 128)
LINEAR_DX_SWIGLU(float, f32, 128, 256)
LINEAR_DX_SWIGLU(float, f32, 64, 64)
#undef LINEAR_DX_SWIGLU
