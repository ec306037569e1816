// Several weight gradients over the same rows in one launch.
#pragma once
#include "linear_chunks.cuh"
#include "table.cuh"

// Written by gpu/linear/weights.rs.
struct alignas(8) WeightProduct {
  float* dw;
  const void *dy, *x;  // by wgmma: their tensor maps
  uint32_t outs, width;
  uint32_t block;       // its first block
  uint32_t accumulate;  // 1: dw holds an earlier sum, 0: it is not read
};

// The tile of block `block` in its product.
template <uint32_t TILE> XT_DEV Tile tile_of_product(const WeightProduct& one, uint32_t block) {
  uint32_t p_tiles = (one.width + TILE - 1) / TILE, q_tiles = (one.outs + TILE - 1) / TILE;
  block -= one.block;
  if (XT_FAULT(LastTileOfProductSkipped) && block + 1 == p_tiles * q_tiles) block = 0;
  return tile_of(block, p_tiles, q_tiles);
}
