// cross_entropy_cutoff  top-k cutoff: value and column of the k-th largest logit of each row with a target (ties: the
//                          lower column is larger)                                             logits [N, V]
// Launch: one block of 256 threads per row.
// Order: integers only: a radix select over four 8-bit digits of the value, then equal values by ascending column.
// Cost: five reads of the row, four of them with an integer atomic in shared memory per logit.
// CPU twin: cpu/loss/rows.rs.
#include "logits.cuh"

XT_KERNEL(cross_entropy_cutoff_f32, 256)(const float* logits, const uint32_t* target, uint32_t* last, float* cutoff,
                                         uint32_t v, uint32_t k, float t) {
  XT_SHARED(uint32_t, count, 256);
  XT_SHARED(uint32_t, selected, 2);  // key prefix so far; how many logits equal to it are kept
  uint32_t n = blockIdx.x, tid = threadIdx.x;
  if (target[n] == NO_TARGET) return;
  Logits row = {logits + (size_t)n * v, v, 0, NO_TARGET, NO_TARGET, t, 0.0f};
  uint32_t key = 0, mask = 0, left = k;
  for (int shift = 24; shift >= 0; shift -= 8) {
    count[tid] = 0;
    __syncthreads();
    for (uint32_t i = tid; i < v; i += 256) {
      uint32_t u = ordered_bits(logit(row, i));
      if ((u & mask) == key) atomicAdd(&count[u >> shift & 255], 1u);
    }
    __syncthreads();
    if (tid == 0) {
      uint32_t b = 255;
      while (count[b] < left) left -= count[b--];
      selected[0] = key | b << shift;
      selected[1] = left;
    }
    __syncthreads();
    key = selected[0], left = selected[1], mask |= 255u << shift;
  }
  uint32_t at = 0;
  for (;; at += 256) {
    bool equal = at + tid < v && ordered_bits(logit(row, at + tid)) == key;
    count[tid] = equal;
    uint32_t here = (uint32_t)__syncthreads_count(equal);
    if (here >= left) break;
    left -= here;
    __syncthreads();
  }
  if (tid != 0) return;
  uint32_t i = 0;
  for (; left > count[i]; i++) left -= count[i];
  last[n] = at + i;
  cutoff[n] = logit(row, at + i);
}
XT_EXPORT(cross_entropy_cutoff_f32)

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
  uint32_t n = blockIdx.x, lane = threadIdx.x & 31, chunk = blockIdx.y * 8 + (threadIdx.x >> 5);
  if (chunk * 128 >= columns) return;
  size_t at = (size_t)n * columns;
  uint32_t y = target[n];
  bool removes = last && y != NO_TARGET;
  Logits row = {logits + at, columns, first, y, removes ? last[n] : NO_TARGET, t, removes ? cutoff[n] : 0.0f};
  float w = factors[2 * n], b = factors[2 * n + 1], lse = values[3 * n], entropy = values[3 * n + 2], sum = 0.0f;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    uint32_t i = chunk * 128 + lane + 32 * j;
    if (i >= columns) continue;
    float dz = 0.0f;
    float z = y == NO_TARGET ? xt_bits_f(0xff800000u) : logit(row, i);
    if (z != xt_bits_f(0xff800000u)) {
      float p = exp_f32(z - lse);
      sum = fmaf(p, lse - z, sum);
      dz = first + i == y ? (p - 1.0f) * w : p * w;
      if (b != 0.0f) dz = dz + b * (p * ((z - lse) + entropy));
      dz = dz / t;
    }
    if (dz_bf16)
      store(dz_bf16 + at + i, dz);
    else
      logits[at + i] = dz;
  }
  if (!entropies) return;
  sum = sum32(sum);
  if (lane == 0) entropies[(size_t)chunk * gridDim.x + n] = sum;
}
XT_EXPORT(cross_entropy_gradient_f32)

// cross_entropy_entropy    values[n].entropy = sum of the row's partial entropies, ascending    entropies [chunks, N]
// Launch: one thread per row, 256 threads per block. Cost: 4 bytes per chunk.
XT_KERNEL(cross_entropy_entropy_f32, 256)(const float* entropies, float* values, uint32_t chunks, uint32_t rows) {
  uint32_t n = blockIdx.x * blockDim.x + threadIdx.x;
  if (n >= rows) return;
  float entropy = 0.0f;
#pragma unroll 8
  for (uint32_t c = 0; c < chunks; c++) entropy = entropy + entropies[(size_t)c * rows + n];
  values[3 * n + 2] = entropy;
}
XT_EXPORT(cross_entropy_entropy_f32)
