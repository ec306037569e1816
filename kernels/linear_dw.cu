// linear_dw    dw[o][k] = dw[o][k] (or +0) + rowsum dy[r][o] x[r][k], for several products over the same rows
//              per product: dy [R, out], x [R, in] -> dw [out, in]
// Launch: one block per TILE x TILE outputs of a product, the blocks of the products one after another; threads and
//   shared memory as linear_bf16.cu and linear_f32.cu. Products whose tiles alone would leave multiprocessors idle
//   share a launch (gpu/linear/weights.rs).
// Order: linear_chunks.cuh. Chunk and total stay in registers: a block walks all rows of its tile, so neither tiles nor
//   the other products of a launch change a bit. CPU twin: cpu/gemm; gate: gpu/linear/tests.
#include "linear_bf16.cuh"
#include "linear_f32.cuh"
#include "weight_products.cuh"

template <class T> XT_DEV Operand<T> row_operand(const void* rows, uint32_t columns) {
  const T* p = xt_global(static_cast<const T*>(rows));
  return {p, p, p, columns};
}

// bounds [chunks + 1]: the first row of each chunk, and the end of the last one.
#define LINEAR_DW(name, threads, product, T, tile)                                                                   \
  XT_KERNEL(name, threads)(const WeightProduct* all, uint32_t products, const uint32_t* bounds, uint32_t chunks) {   \
    xt_grid_dependency_sync();                                                                                       \
    WeightProduct one = tensor_of_block<&WeightProduct::block>(all, products, blockIdx.x);                           \
    float* dw = xt_global(one.dw);                                                                                   \
    product<tile, false, false>(tile_of_product<tile>(one, blockIdx.x), row_operand<T>(one.x, one.width),            \
                                row_operand<T>(one.dy, one.outs), RowChunks{bounds, chunks},                         \
                                Epilogue{one.accumulate ? dw : nullptr, nullptr, nullptr, dw, nullptr});             \
  }                                                                                                                  \
  XT_EXPORT(name)
LINEAR_DW(linear_dw_bf16_128, 256, product_bf16, bf16, 128)
LINEAR_DW(linear_dw_bf16_64, 128, product_bf16, bf16, 64)
LINEAR_DW(linear_dw_f32_128, 256, product_f32, float, 128)
LINEAR_DW(linear_dw_f32_64, 64, product_f32, float, 64)
#undef LINEAR_DW
