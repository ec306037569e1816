// RoPE table lookup; see rope.cu.
#pragma once
#include "xt.cuh"

// The hd/2 cosines of a position; its hd/2 sines follow them.
XT_DEV const float* rope_row(const uint64_t* table, uint32_t pos, uint32_t hd) {
  return xt_global((const float*)table[pos / 256]) + (size_t)(pos % 256) * hd;
}
