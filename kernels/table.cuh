// Tables in device memory that drive one launch over several tensors.
#pragma once
#include "xt.cuh"

// Binary search: the last tensor whose first block is at or before `block`.
template <auto START, class Entry> XT_DEV Entry tensor_of_block(const Entry* all, uint32_t tensors, uint32_t block) {
  uint32_t low = 0, high = tensors;
  while (high - low > 1) {
    uint32_t middle = (low + high) / 2;
    if (all[middle].*START <= block)
      low = middle;
    else
      high = middle;
  }
  return all[low];
}
