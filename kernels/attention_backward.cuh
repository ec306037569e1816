// Shared by attention_backward.cu and attention_backward_bf16.cu.
#pragma once
#include "contract.cuh"

// p and ds of one score; +0 if it is masked.
XT_DEV void score_gradient(float& p, float& ds, bool visible, float s, float dp, float scale, float lse,
                           float delta) {
  p = visible ? exp_f32(s * scale - lse) : 0.0f;
  ds = visible ? p * (dp - delta) : 0.0f;
}
