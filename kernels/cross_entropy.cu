#include "logits.cuh"
// cross_entropy_cut        the k-th logit of each row with a target, the largest first and of equal ones the
//                          first: its value and its index                                     logits [N, V]
// Launch: a block of 256 threads a row. Order: integers. Four counts of eight bits of the value, then its
//   equals in rising index. CPU twin: ops/cross_entropy/rows.rs.
// Cost: five reads of the row, four of them with an integer atomic in shared memory a logit.

// Rises with z; zeros of both signs are equal.
XT_DEV uint32_t rising(float z) {
  uint32_t u = xt_f_bits(z + 0.0f);
  return u >> 31 ? ~u : u | 0x80000000u;
}

XT_KERNEL(cross_entropy_cut_f32, 256)(const float* logits, const uint32_t* target, uint32_t* last, float* cut, uint32_t v, uint32_t k, float t) {
  XT_SHARED(uint32_t, count, 256);
  XT_SHARED(uint32_t, found, 2);        // the value's bits so far; how many of the still equal ones are kept
  uint32_t n = blockIdx.x, tid = threadIdx.x;
  if (target[n] == ABSENT) return;
  Logits row = {logits + (size_t)n * v, v, 0, ABSENT, ABSENT, t, 0.0f};
  uint32_t key = 0, mask = 0, left = k;
  for (int shift = 24; shift >= 0; shift -= 8) {
    count[tid] = 0;
    __syncthreads();
    for (uint32_t i = tid; i < v; i += 256) {
      uint32_t u = rising(logit(row, i));
      if ((u & mask) == key) atomicAdd(&count[u >> shift & 255], 1u);
    }
    __syncthreads();
    if (tid == 0) {
      uint32_t b = 255;
      while (count[b] < left) left -= count[b--];
      found[0] = key | b << shift;
      found[1] = left;
    }
    __syncthreads();
    key = found[0], left = found[1], mask |= 255u << shift;
  }
  uint32_t at = 0;
  for (;; at += 256) {
    bool equal = at + tid < v && rising(logit(row, at + tid)) == key;
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
  cut[n] = logit(row, at + i);
}
XT_EXPORT(cross_entropy_cut_f32)

// cross_entropy_gradient   dz[i] = (p w + b p ((z_i - lse) + H)) / T, at the target (p - 1) w, p = exp(z_i - lse);
//                          +0 where the logit is removed or the row has no target
//                          logits [N, columns], which begin at column `first` -> dz in place, or rounded
// Launch: a block of 256 threads for 1024 columns of a row, grid (N, columns / 1024). No sums.
//   CPU twin: cpu/softmax.rs.
// Cost: 8 bytes a logit (in bf16 6) and about 40 instructions: near the ridge of memory.
XT_KERNEL(cross_entropy_gradient_f32, 256)(float* logits, const uint32_t* target, const float* factors, const float* values, const uint32_t* last, const float* cut, bf16* rounded, uint32_t columns, uint32_t first, float t) {
  uint32_t n = blockIdx.x, end = min(columns, (blockIdx.y + 1) * 1024);
  size_t at = (size_t)n * columns;
  uint32_t y = target[n];
  if (y == ABSENT) {
    for (uint32_t i = blockIdx.y * 1024 + threadIdx.x; i < end; i += 256) {
      if (rounded) store(rounded + at + i, 0.0f);
      else logits[at + i] = 0.0f;
    }
    return;
  }
  Logits row = {logits + at, columns, first, y, last ? last[n] : ABSENT, t, cut ? cut[n] : 0.0f};
  float w = factors[2 * n], b = factors[2 * n + 1], lse = values[3 * n], entropy = values[3 * n + 2];
  for (uint32_t i = blockIdx.y * 1024 + threadIdx.x; i < end; i += 256) {
    float z = logit(row, i), dz = 0.0f;
    if (z != xt_bits_f(0xff800000u)) {
      float p = exp_of(z - lse);
      dz = first + i == y ? (p - 1.0f) * w : p * w;
      if (b != 0.0f) dz = dz + b * (p * ((z - lse) + entropy));
      dz = dz / t;
    }
    if (rounded) store(rounded + at + i, dz);
    else logits[at + i] = dz;
  }
}
XT_EXPORT(cross_entropy_gradient_f32)
