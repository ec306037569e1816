// cast_all     y[i] = x[i] for all matrices of a model, f32 to bf16 rounded to nearest even
// Launch: 256 threads per block, 4096 elements of one matrix per block, vectors of four elements; one launch for all
//   matrices. Order: element-wise. CPU twin: Tensor::cast.
#include "contract.cuh"
#include "table.cuh"
#include "vec4.cuh"

// Written by gpu/pack.rs.
struct alignas(8) CastMatrix {
  const float* x;
  bf16* y;
  uint64_t n;      // elements
  uint32_t block;  // its first block
  uint32_t padding;
};

XT_KERNEL(cast_all_f32_bf16, 256)(const CastMatrix* all, uint32_t matrices) {
  xt_grid_dependency_sync();
  CastMatrix matrix = tensor_of_block<&CastMatrix::block>(all, matrices, blockIdx.x);
  const float* x = xt_global(matrix.x);
  bf16* y = xt_global(matrix.y);
  uint64_t first = 4096ull * (blockIdx.x - matrix.block) + 4 * threadIdx.x;
  if (first + 3076 <= matrix.n) {
    Vec4<float> v[4];
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = load4(x + first + 1024 * k);
#pragma unroll
    for (int k = 0; k < 4; k++)
      store4(y + first + 1024 * k,
             Vec4<bf16>{to_bf16(v[k].v[0]), to_bf16(v[k].v[1]), to_bf16(v[k].v[2]), to_bf16(v[k].v[3])});
    return;
  }
  for (int k = 0; k < 4; k++)
    for (uint64_t i = first + 1024 * k; i < min(first + 1024 * k + 4, matrix.n); i++)
      if (!XT_FAULT(TailOfWeightNotCast)) y[i] = to_bf16(x[i]);
}
XT_EXPORT(cast_all_f32_bf16)
