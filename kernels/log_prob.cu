// log_prob     values[n] = (lse, z[y] - lse, entropy) of row n of z = logits / T, for rows with a target y
//              logits [N, V] -> values [N, 3]; rows without a target (NO_TARGET) are not written
//              entropy = 0 (parameter): the entropy is computed later, by cross_entropy_gradient
// Launch: one block per row, one warp per chunk of 128 logits, at most 16 warps; dynamic shared memory of 8 bytes per
//   chunk (3 KiB at V = 50,000).
// Order: lane t takes logits t, t + 32, ... of a chunk; one warp combines the (max, sum) of the chunks by sum32; the
//   chunks' entropies are added in ascending order. CPU twin: cpu/softmax.rs.
// Cost: V exps for lse and V for the entropy, about 60 instructions per logit: bound by arithmetic, not by memory;
//   the row (200 KB at V = 50,000) is read twice, the second time from L2.
#include "logits.cuh"

// m[c] = max of chunk c; l[c] = sum of exp(z - m[c]); 0 if all are -inf.
XT_DEV void chunk_sum(const Logits& row, uint32_t c, float* m, float* l) {
  uint32_t lane = threadIdx.x & 31, at = c * 128 + lane;
  const float neg_inf = xt_bits_f(0xff800000u);
  float z[4], top = neg_inf, v = 0.0f;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    z[j] = at + 32 * j < row.n ? logit(row, at + 32 * j) : neg_inf;
    top = max_f32(top, z[j]);
  }
  top = max32(top);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    float e = exp_f32(z[j] - top);
    bool adds = top != neg_inf || z[j] != neg_inf;  // a NaN counts, also without a maximum
    v = at + 32 * j < row.n && adds ? v + e : v;
  }
  v = sum32(v);
  if (lane == 0) m[c] = top, l[c] = v;
}

XT_DEV float chunk_entropy(const Logits& row, uint32_t c, float lse) {
  uint32_t at = c * 128 + (threadIdx.x & 31);
  const float neg_inf = xt_bits_f(0xff800000u);
  float z[4], v = 0.0f;
#pragma unroll
  for (int j = 0; j < 4; j++) z[j] = at + 32 * j < row.n ? logit(row, at + 32 * j) : neg_inf;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    float next = fmaf(exp_f32(z[j] - lse), lse - z[j], v);
    v = z[j] != neg_inf ? next : v;
  }
  return sum32(v);
}

XT_DEV void row_values(const Logits& row, bool with_entropy, float* values) {
  XT_DYN_SHARED(float, m);
  XT_SHARED(float, shared_lse, 1);
  uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5, chunks = (row.n + 127) / 128;
  float* l = m + chunks;
  for (uint32_t c = warp; c < chunks; c += warps) chunk_sum(row, c, m, l);
  __syncthreads();
  if (warp == 0) {
    float top = xt_bits_f(0xff800000u), sum = 0.0f;
    for (uint32_t c = lane; c < chunks; c += 32) top = max_f32(top, m[c]);
    top = max32(top);
    for (uint32_t c = lane; c < chunks; c += 32) sum = fmaf(l[c], exp_f32(m[c] - top), sum);
    sum = sum32(sum);
    float lse = top + log_f32(sum);
    if (lane == 0) shared_lse[0] = lse, values[0] = lse, values[1] = logit(row, row.target) - lse;
  }
  __syncthreads();
  float lse = shared_lse[0];
  if (!with_entropy) return;
  for (uint32_t c = warp; c < chunks; c += warps) {
    float e = chunk_entropy(row, c, lse);
    if (lane == 0) m[c] = e;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  float entropy = 0.0f;
#pragma unroll 8
  for (uint32_t c = 0; c < chunks; c++) entropy = entropy + m[c];
  values[2] = entropy;
}

// last, cutoff: column and value of the last kept logit of each row; null: no filter.
XT_KERNEL_FOR(log_prob_f32, 512, 2)(const float* logits, const uint32_t* target, const uint32_t* last,
                                    const float* cutoff, float* values, uint32_t v, float t, uint32_t entropy) {
  xt_grid_dependency_sync();
  uint32_t n = blockIdx.x;
  if (target[n] == NO_TARGET) return;
  row_values({logits + (size_t)n * v, v, 0, target[n], last ? last[n] : NO_TARGET, t, cutoff ? cutoff[n] : 0.0f},
             entropy != 0, values + 3 * n);
}
XT_EXPORT(log_prob_f32)
