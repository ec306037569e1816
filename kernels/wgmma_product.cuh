// A persistent product by wgmma: blocks of two warpgroups of consumers (64 rows of operand 0 each), and one warpgroup of
// which a single thread copies. Output tiles have 128 x 128 outputs.
#pragma once
#include "linear_chunks.cuh"
#include "wgmma_ring.cuh"
#include "wgmma_store.cuh"

const uint32_t WGMMA_THREADS = WgmmaRing::CONSUMERS + 128;

// Lets the thread that copies use these tensor maps.
XT_DEV void fence_maps(const TensorMap* maps, uint32_t n) {
  if (threadIdx.x == WgmmaRing::CONSUMERS)
    for (uint32_t i = 0; i < n; i++) xt_tensor_map_fence(maps + i);
}

// f(tile) for the tiles of this block among `tiles`.
template <class F> XT_DEV void for_each_tile(uint32_t tiles, F f) {
  for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) f(tile);
}

// Computes the tiles of this block. fill(ring, tile) copies the operands of a tile to the ring; sum(ring, tile) adds their
// products and stores them.
template <class Fill, class Sum> XT_DEV void by_wgmma(uint32_t tiles, Fill fill, Sum sum) {
  WgmmaRing ring = wgmma_ring();
  if (threadIdx.x < WgmmaRing::CONSUMERS) {
    xt_more_registers<224>();
    for_each_tile(tiles, [&](uint32_t tile) { sum(ring, tile); });
  } else {
    xt_fewer_registers<40>();
    if (threadIdx.x != WgmmaRing::CONSUMERS) return;
    for_each_tile(tiles, [&](uint32_t tile) { fill(ring, tile); });
  }
}

// Copies the 64 k from `k` on of a box of a K-major matrix: row `row` and those that follow.
XT_DEV void copy_rows(bf16* s, const TensorMap* map, uint32_t row, uint32_t k, uint64_t* barrier) {
  xt_bulk_copy_2d(s, map, k, row, barrier);
}

// The same for 128 columns of an MN-major matrix, which are the rows of the operand; a box has 64 of them.
XT_DEV void copy_columns(bf16* s, const TensorMap* map, uint32_t column, uint32_t k, uint64_t* barrier) {
  for (uint32_t half = 0; half < 2; half++)
    xt_bulk_copy_2d(s + half * WgmmaRing::ROW_GROUP, map, column + half * 64, k, barrier);
}
