// sample_cutoff   maximum z of a row, whether the row can be sampled, and the lowest rank that top-k and top-p keep
//                 x [N, V], raw [N, ceil(V / 128)] -> state [N]
// Both filters visit the ranks in ascending order and remove tokens while the running sum of a weight (1 for top-k, W
// for top-p) stays within a budget. This is a radix select over eight digits with one integer histogram per digit.
// The first digit is the distance from the maximum, which distributes better than the bits of the exponent.
// Launch: one block of 512 threads per row. Order: integer sums. CPU twin: reference/sample.rs.
#include "sample.cuh"

struct RadixSelect {
  unsigned long long bins[256];
  unsigned long long removed, bin_weight, sum;
  uint32_t digit;
  float maximum[16];
};

XT_DEV uint32_t distance_digit(float z, float max_z) {
  float d = (max_z - z) * 2.9f;
  return d < 255.0f ? 255 - (uint32_t)d : 0;
}

// The rank in 56 bits; an index has at most 19 bits.
XT_DEV uint64_t short_rank(float z, uint32_t i) { return (uint64_t)ordered_bits(z) << 24 | (~i & 0xffffffu); }

template <bool COUNT> XT_DEV uint64_t select_weight(float z, float max_z) {
  return COUNT ? 1 : integer_weight(exp_f32(z - max_z));
}

// Finds the bin in which the running sum exceeds the budget. Executed by the first warp.
XT_DEV void find_bin(RadixSelect* select, uint64_t budget) {
  if (threadIdx.x >= 32) return;
  uint32_t lane = threadIdx.x;
  uint64_t removed = select->removed, mine = 0;
  for (int i = 0; i < 8; i++) mine += select->bins[8 * lane + i];
  uint64_t running = warp_running(mine);
  uint32_t passed = __ballot_sync(0xffffffffu, removed + running > budget);
  if (!passed || lane != (uint32_t)(__ffs(passed) - 1)) return;
  removed += running - mine;
  uint32_t bin = 8 * lane;
  for (; removed + select->bins[bin] <= budget; bin++) removed += select->bins[bin];
  select->digit = bin;
  select->bin_weight = select->bins[bin];
  select->removed = removed;
}

// The first rank at or above `low` at which the running sum exceeds the budget. The total sum must exceed the budget.
template <bool COUNT>
XT_DEV uint64_t select_rank(const float* x, uint32_t v, float temperature, float max_z, uint64_t low, uint64_t budget,
                            RadixSelect* select) {
  uint64_t prefix = 0;
  uint32_t distance = 0;
  if (threadIdx.x == 0) select->removed = 0;
  for (int pass = 0; pass < 8; pass++) {
    int shift = 56 - 8 * pass;
    if (threadIdx.x < 256) select->bins[threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < v; i += blockDim.x) {
      float z = x[i] / temperature;
      uint64_t rank = short_rank(z, i);
      uint32_t first = distance_digit(z, max_z);
      if (rank_of(z, i) < low || (pass && (first != distance || rank >> (shift + 8) != prefix))) continue;
      uint64_t weight = select_weight<COUNT>(z, max_z);
      if (weight) atomicAdd(select->bins + (pass ? rank >> shift & 255 : first), (unsigned long long)weight);
    }
    __syncthreads();
    find_bin(select, budget);
    __syncthreads();
    if (pass == 0)
      distance = select->digit;
    else
      prefix = prefix << 8 | select->digit;
    // a z that occurs once needs no index digits; max() keeps ranks below `low` removed
    if (pass == 4 && select->bin_weight == select_weight<COUNT>(from_ordered_bits((uint32_t)prefix), max_z))
      return max(low, prefix << 32);
  }
  return prefix >> 24 << 32 | 0xff000000u | (prefix & 0xffffffu);
}

XT_DEV float block_max(float m, RadixSelect* select) {
  m = max32(m);
  if (threadIdx.x % 32 == 0) select->maximum[threadIdx.x / 32] = m;
  __syncthreads();
  for (int i = 0; i < 16; i++) m = max_f32(m, select->maximum[i]);
  __syncthreads();
  return m;
}

XT_KERNEL(sample_cutoff_f32, 512)(const float* x, const SampleRow* rows, const ChunkSums* raw, SampleState* states,
                                  uint32_t v, uint32_t chunks) {
  XT_SHARED(RadixSelect, select, 1);
  const float neg_inf = xt_bits_f(0xff800000u);
  SampleRow row = rows[blockIdx.x];
  x += (size_t)blockIdx.x * v;
  raw += (size_t)blockIdx.x * chunks;
  float maximum = neg_inf;
  for (uint32_t c = threadIdx.x; c < chunks; c += blockDim.x) maximum = max_f32(maximum, raw[c].m);
  maximum = block_max(maximum, select);
  uint32_t fault = maximum == xt_bits_f(0x7f800000u) ? 1 : maximum == neg_inf ? 2 : 0;

  // dividing by the temperature preserves the order; a penalty does not
  float max_z = scaled(maximum, row.temperature);
  if (row.penalty != 1.0f) {
    max_z = neg_inf;
    for (uint32_t i = threadIdx.x; i < v; i += blockDim.x) max_z = max_f32(max_z, scaled(x[i], row.temperature));
    max_z = block_max(max_z, select);
  }
  if (!fault && (xt_f_bits(max_z) & 0x7fffffffu) == 0x7f800000u) fault = 3;

  uint64_t cutoff = 0;
  if (!fault && row.temperature != 0.0f) {
    if (row.top_k && row.top_k < v)
      cutoff = select_rank<true>(x, v, row.temperature, max_z, 0, v - row.top_k, select);
    if (row.top_p < 1.0f) {
      if (threadIdx.x == 0) select->sum = 0;
      __syncthreads();
      uint64_t sum = 0;
      for (uint32_t i = threadIdx.x; i < v; i += blockDim.x) {
        float z = x[i] / row.temperature;
        if (rank_of(z, i) >= cutoff) sum += select_weight<false>(z, max_z);
      }
      sum = warp_total(sum);
      if (threadIdx.x % 32 == 0) atomicAdd(&select->sum, (unsigned long long)sum);
      __syncthreads();
      uint64_t total = select->sum, budget = (uint64_t)((1.0 - (double)row.top_p) * (double)total);
      cutoff = select_rank<false>(x, v, row.temperature, max_z, cutoff, budget < total ? budget : total - 1, select);
    }
  }
  if (threadIdx.x == 0) states[blockIdx.x] = {cutoff, max_z, fault};
}
XT_EXPORT(sample_cutoff_f32)
