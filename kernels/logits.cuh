// One row of logits as the losses read it, shared by log_prob.cu and cross_entropy.cu: temperature and an optional
// cutoff of top-k, top-p and min-p are applied on load.
#pragma once
#include "contract.cuh"

// Sentinel: a row without a target, or a row without a cutoff.
#define NO_TARGET 0xffffffffu

// n logits of a row; z[0] is vocabulary column `first`. With a cutoff, logits below the last kept one are removed
// (-inf); the target is always kept.
struct Logits {
  const float* z;
  uint32_t n, first, target, last;  // last: column of the last kept logit; NO_TARGET: no cutoff
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
