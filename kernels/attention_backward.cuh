// Shared by attention_backward.cu and attention_backward_bf16.cu.
#pragma once
#include "contract.cuh"

// p and ds of one score.
XT_DEV void score_gradient(float& p, float& ds, float s, float dp, float scale, float lse, float delta) {
  p = exp_f32(s * scale - lse);
  ds = p * (dp - delta);
}

// The same; +0 if the score is masked.
XT_DEV void score_gradient(float& p, float& ds, bool visible, float s, float dp, float scale, float lse,
                           float delta) {
  score_gradient(p, ds, s, dp, scale, lse, delta);
  p = visible ? p : 0.0f;
  ds = visible ? ds : 0.0f;
}
