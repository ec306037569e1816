// adamw        g = g clip;  m = fma(s1, g - m, m);  v = fma(s2, v, s3 (g g));  w = w keep;
//              w = fma(-step, m / (sqrt(v) / c2 + eps), w)
//              No update if the gradient norm is not finite. clip_state->overflowed = 1 if any updated w is a NaN or
//              an infinity.
// Launch: 256 threads per block, 4096 elements of one tensor per block, one vector of four elements per thread and
//   iteration; one launch for all tensors.
// Order: element-wise. The overflow flag is one integer atomicMax per warp, which is independent of order.
// CPU twin: cpu/optim.rs.
#include "optimizer.cuh"
#include "vec4.cuh"

struct AdamW {
  float s1, s2, s3, keep, step, c2, eps, clip;
};

// Updates one element. Returns whether the new w is finite.
XT_DEV bool adamw_of(float& w, float& m, float& v, float g, const AdamW& s) {
  g = g * s.clip;
  m = fmaf(s.s1, g - m, m);
  v = fmaf(s.s2, v, s.s3 * (g * g));
  w = fmaf(-s.step, m / (sqrtf(v) / s.c2 + s.eps), w * s.keep);
  return (xt_f_bits(w) & 0x7f800000u) != 0x7f800000u;
}

XT_KERNEL(adamw_f32, 256)(const Parameter* all, uint32_t tensors, ClipState* clip_state, float s1, float s2, float s3,
                          float keep, float step, float c2, float eps) {
  xt_grid_dependency_sync();
  if (clip_state->finite == 0.0f) return;
  Parameter p = tensor_of_block<&Parameter::block>(all, tensors, blockIdx.x);
  p.w = xt_global(p.w), p.g = xt_global(p.g), p.m = xt_global(p.m), p.v = xt_global(p.v);
  AdamW s = {s1, s2, s3, p.decayed ? keep : 1.0f, step, c2, eps, clip_state->clip};
  bool finite = true;
  uint64_t at = 4096ull * (blockIdx.x - p.block) + 4 * threadIdx.x;
#pragma unroll
  for (int step_index = 0; step_index < 4; step_index++, at += 1024) {
    if (at + 4 <= p.n) {
      Vec4<float> w = load4(p.w + at), g = load4(p.g + at), m = load4(p.m + at), v = load4(p.v + at);
#pragma unroll
      for (int i = 0; i < 4; i++) finite = finite & adamw_of(w.v[i], m.v[i], v.v[i], g.v[i], s);
      store4(p.w + at, w);
      store4(p.m + at, m);
      store4(p.v + at, v);
    } else {
      for (uint64_t i = at; i < p.n && !XT_FAULT(TailOfTensorNotUpdated); i++)
        finite = finite & adamw_of(p.w[i], p.m[i], p.v[i], p.g[i], s);
    }
  }
  if (__any_sync(0xffffffffu, !finite) && (threadIdx.x & 31) == 0) atomicMax(&clip_state->overflowed, 1u);
}
XT_EXPORT(adamw_f32)
