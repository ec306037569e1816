// cross_entropy_cutoff  the last logit that top-k, top-p and min-p keep of z = logits / T, in order of descending value,
//                          then ascending column: its value and column; and whether the target is kept
//                          logits [N, V] -> last, cutoff, kept [N]; rows without a target are not written
//                          k = 0: no top-k; top_p = 1: no top-p; min_p = 0: no min-p
//                          set, if not null: a row n with set[n] != NO_TARGET has a given kept set and no cutoff
// A row without a finite maximum has no cutoff: its values are not finite.
// Launch: one block of 512 threads per row. Order: integer sums. CPU twin: cpu/loss/cutoff.rs.
// Cost: one read of the row for the maximum, up to eight for each of top-k and top-p (an integer atomic in shared
//   memory per logit; top-p also an exp), one for min-p.
#include "logits.cuh"
#include "radix_select.cuh"

XT_KERNEL_FOR(cross_entropy_cutoff_f32, 512, 2)(const float* logits, const uint32_t* target, uint32_t* last,
                                                float* cutoff, uint32_t* kept, const uint32_t* set, uint32_t v,
                                                uint32_t k, float top_p, float min_p, float t) {
  xt_grid_dependency_sync();
  XT_SHARED(RadixSelect, select, 1);
  const float neg_inf = xt_bits_f(0xff800000u);
  uint32_t n = blockIdx.x, y = target[n];
  if (y == NO_TARGET) return;
  if (set && set[n] != NO_TARGET) {
    if (threadIdx.x == 0) last[n] = NO_TARGET, cutoff[n] = neg_inf, kept[n] = 1;
    return;
  }
  const float* x = logits + (size_t)n * v;
  float maximum = neg_inf;
  auto load_at = [=](uint32_t i) { return x[i]; };
  in_flight<8>((uint32_t)threadIdx.x, v, (uint32_t)blockDim.x, load_at,
               [&](uint32_t, float logit) { maximum = max_f32(maximum, logit); });
  float max_z = block_max(maximum, select) / t;  // dividing by the temperature preserves the order
  uint64_t lowest = 0;
  float least = neg_inf;  // the smallest z that min-p keeps
  if ((xt_f_bits(max_z) & 0x7fffffffu) < 0x7f800000u) {
    if (k && k < v) lowest = select_rank<true>(x, v, t, max_z, 0, v - k, select);
    if (top_p < 1.0f) lowest = top_p_rank(x, v, t, max_z, lowest, top_p, select);
    if (min_p > 0.0f) {
      float below = neg_inf;  // the maximum of -z
      in_flight<8>((uint32_t)threadIdx.x, v, (uint32_t)blockDim.x, load_at, [&](uint32_t, float logit) {
        float z = logit / t;
        if (exp_f32(z - max_z) >= min_p) below = max_f32(below, -z);
      });
      least = -block_max(below, select);
    }
  }
  if (threadIdx.x != 0) return;
  // the rank of a z that occurs once may have index digits of 0
  float cut = lowest ? from_ordered_bits((uint32_t)(lowest >> 32)) : neg_inf;
  uint32_t at = lowest ? min((uint32_t)~lowest, NO_TARGET - 1) : NO_TARGET;
  if (least > cut) cut = least, at = NO_TARGET - 1;
  float z = x[y] / t;
  last[n] = at, cutoff[n] = cut;
  kept[n] = at == NO_TARGET || z > cut || (z == cut && y <= at) || z != z;
}
XT_EXPORT(cross_entropy_cutoff_f32)

// cross_entropy_kept       bit i % 32 of bits[row, i / 32]: whether the cutoff keeps logit i
//                          logits [N, V] -> bits [N, ceil(V / 32)]; rows without a target are not written
// Launch: grid (N, ceil(V / 256)), 8 warps per block, one warp per word. Cost: 4 bytes per logit.
XT_KERNEL(cross_entropy_kept_f32, 256)(const float* logits, const uint32_t* target, const uint32_t* last,
                                       const float* cutoff, uint32_t* bits, uint32_t v, float t) {
  xt_grid_dependency_sync();
  uint32_t n = blockIdx.x, word = blockIdx.y * 8 + (threadIdx.x >> 5), i = word * 32 + (threadIdx.x & 31);
  uint32_t words = (v + 31) / 32;
  if (target[n] == NO_TARGET || word >= words) return;
  bool kept = false;
  if (i < v) {
    float z = logits[(size_t)n * v + i] / t;
    kept = last[n] == NO_TARGET || z > cutoff[n] || (z == cutoff[n] && i <= last[n]);
  }
  uint32_t ballot = __ballot_sync(0xffffffffu, kept);
  if ((threadIdx.x & 31) == 0) bits[(size_t)n * words + word] = ballot;
}
XT_EXPORT(cross_entropy_kept_f32)

// cross_entropy_remove     logits[n, i] = -inf unless bit (first + i) of the row's set is 1, or first + i is the target,
//                          or the logit is a NaN or +inf    logits [N, columns], whose first column is `first`
//                          set[n]: the row of `bits` [., words]; NO_TARGET: nothing is removed
// Launch: grid (N, columns / 1024), 256 threads. Cost: up to 8 bytes per logit.
XT_KERNEL(cross_entropy_remove_f32, 256)(float* logits, const uint32_t* target, const uint32_t* set,
                                         const uint32_t* bits, uint32_t words, uint32_t columns, uint32_t first) {
  xt_grid_dependency_sync();
  uint32_t n = blockIdx.x;
  if (target[n] == NO_TARGET || set[n] == NO_TARGET) return;
  const uint32_t* kept = bits + (size_t)set[n] * words;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    uint32_t i = blockIdx.y * 1024 + threadIdx.x + 256 * j, at = first + i;
    uint32_t bit = XT_FAULT(KeptSetForgetsFirstColumn) ? i : at;
    if (i >= columns || (kept[bit / 32] >> bit % 32 & 1) || at == target[n]) continue;
    float* z = logits + (size_t)n * columns + i;
    if (*z < xt_bits_f(0x7f800000u)) *z = xt_bits_f(0xff800000u);
  }
}
XT_EXPORT(cross_entropy_remove_f32)

// cross_entropy_gradient   dz[i] = (p w + b p ((z_i - lse) + H)) / T, at the target (p - 1) w, p = exp(z_i - lse);
//                          +0 for a removed logit and for a row without a target
//                          logits [N, columns], whose first column is `first` -> dz in place, or dz_bf16 if not null
//                          entropies, if not null: one partial entropy per chunk of 128 logits, [chunk][row]
// Launch: grid (N, columns / 1024), 8 warps per block, one warp per chunk of 128 logits.
// Order: as log_prob. CPU twin: cpu/softmax.rs.
// Cost: 8 bytes per logit (6 in bf16) and about 40 instructions: near the ridge point of memory bandwidth. Computing
//   the entropy here saves one exp and one read of the logits compared with log_prob.
XT_KERNEL(cross_entropy_gradient_f32,
          256)(float* logits, const uint32_t* target, const float* factors, const float* values, const uint32_t* last,
               const float* cutoff, float* entropies, bf16* dz_bf16, uint32_t columns, uint32_t first, float t) {
  xt_grid_dependency_sync();
  uint32_t n = blockIdx.x, lane = threadIdx.x & 31, chunk = blockIdx.y * 8 + (threadIdx.x >> 5);
  if (chunk * 128 >= columns) return;
  size_t at = (size_t)n * columns;
  uint32_t y = target[n];
  bool removes = last && y != NO_TARGET;
  Logits row = {logits + at, columns, first, y, removes ? last[n] : NO_TARGET, t, removes ? cutoff[n] : 0.0f};
  float w = factors[2 * n], b = factors[2 * n + 1], lse = values[3 * n], entropy = values[3 * n + 2], sum = 0.0f;
  const float neg_inf = xt_bits_f(0xff800000u);
  float dz[4];
#pragma unroll
  for (int j = 0; j < 4; j++) {
    uint32_t i = chunk * 128 + lane + 32 * j;
    dz[j] = i < columns && y != NO_TARGET ? logit(row, i) : neg_inf;  // before the stores, which may alias
  }
#pragma unroll
  for (int j = 0; j < 4; j++) {
    float z = dz[j], p = exp_f32(z - lse), next = fmaf(p, lse - z, sum);
    dz[j] = first + chunk * 128 + lane + 32 * j == y ? (p - 1.0f) * w : p * w;
    if (b != 0.0f) dz[j] = dz[j] + b * (p * ((z - lse) + entropy));
    if (t != 1.0f) dz[j] = dz[j] / t;
    sum = z != neg_inf ? next : sum;
    dz[j] = z != neg_inf ? dz[j] : 0.0f;
  }
#pragma unroll
  for (int j = 0; j < 4; j++) {
    uint32_t i = chunk * 128 + lane + 32 * j;
    if (i >= columns) continue;
    if (dz_bf16)
      store(dz_bf16 + at + i, dz[j]);
    else
      logits[at + i] = dz[j];
  }
  if (!entropies) return;
  sum = sum32(sum);
  if (lane == 0) entropies[(size_t)chunk * gridDim.x + n] = sum;
}
XT_EXPORT(cross_entropy_gradient_f32)

// cross_entropy_entropy    values[n].entropy = sum of the row's partial entropies, ascending    entropies [chunks, N]
// Launch: one thread per row, 256 threads per block. Cost: 4 bytes per chunk.
XT_KERNEL(cross_entropy_entropy_f32, 256)(const float* entropies, float* values, uint32_t chunks, uint32_t rows) {
  xt_grid_dependency_sync();
  uint32_t n = blockIdx.x * blockDim.x + threadIdx.x;
  if (n >= rows) return;
  float entropy = 0.0f;
  in_flight<8>(
      0u, chunks, 1u, [=](uint32_t c) { return entropies[(size_t)c * rows + n]; },
      [&](uint32_t, float e) { entropy = entropy + e; });
  values[3 * n + 2] = entropy;
}
XT_EXPORT(cross_entropy_entropy_f32)
