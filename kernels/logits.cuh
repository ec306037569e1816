// A row of logits as the loss reads it: shared by log_prob.cu and cross_entropy.cu.
#pragma once
#include "contract.cuh"

// The target of a row that has none.
#define NO_TARGET 0xffffffffu

// A row of logits whose first column is `first`; with a cut, those after the last kept one are removed.
struct Logits {
  const float* z;
  uint32_t n, first, target, last;  // last: the index of the last kept logit, ABSENT without a cut
  float t, cutoff;
};

XT_DEV float logit(const Logits& row, uint32_t i) {
  float z = row.z[i];
  if (row.t != 1.0f) z = z / row.t;
  if (row.last == NO_TARGET) return z;
  uint32_t at = row.first + i;
  bool kept = z > row.cutoff || (z == row.cutoff && at <= row.last) || z != z || at == row.target;
  return kept ? z : xt_bits_f(0xff800000u);
}
