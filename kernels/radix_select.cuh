// The lowest rank that top-k or top-p keeps (docs/numerics.md, section 7), shared by sample_cutoff.cu (from the second
// digit on) and cross_entropy.cu. Both filters visit the ranks in ascending order and remove tokens while the running sum
// of a weight (1 for top-k, W for top-p) stays within a budget. This is a radix select over eight digits with one integer
// histogram per digit. The first digit is the distance from the maximum, which distributes better than the bits of the exponent.
// Executed by a block of 256 or 512 threads. Order: integer sums.
#pragma once
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
  for (; removed + select->bins[bin] + XT_FAULT(FilterStopsEarly) <= budget; bin++) removed += select->bins[bin];
  select->digit = bin;
  select->bin_weight = select->bins[bin];
  select->removed = removed;
}

// select_rank from the second digit on. each(use) calls use(i, z) for the candidates, whose ranks are at least `low` and
// whose first digits are equal; select->removed is the sum of the ranks below them.
template <bool COUNT, class Each>
XT_DEV uint64_t select_digits(Each each, float max_z, uint64_t low, uint64_t budget, RadixSelect* select) {
  uint64_t prefix = 0;
  for (int pass = 1; pass < 8; pass++) {
    int shift = 56 - 8 * pass;
    if (threadIdx.x < 256) select->bins[threadIdx.x] = 0;
    __syncthreads();
    each([&](uint32_t i, float z) {
      uint64_t rank = short_rank(z, i);
      if (rank >> (shift + 8) != prefix) return;
      uint64_t weight = select_weight<COUNT>(z, max_z);
      if (weight) atomicAdd(select->bins + (rank >> shift & 255), (unsigned long long)weight);
    });
    __syncthreads();
    find_bin(select, budget);
    __syncthreads();
    prefix = prefix << 8 | select->digit;
    // a z that occurs once needs no index digits; max() keeps ranks below `low` removed
    if (pass == 4 && select->bin_weight == select_weight<COUNT>(from_ordered_bits((uint32_t)prefix), max_z))
      return max(low, prefix << 32);
  }
  return prefix >> 24 << 32 | 0xff000000u | (prefix & 0xffffffu);
}

// The first rank at or above `low` at which the running sum exceeds the budget. The total sum must exceed the budget.
template <bool COUNT>
XT_DEV uint64_t select_rank(const float* x, uint32_t v, float temperature, float max_z, uint64_t low, uint64_t budget,
                            RadixSelect* select) {
  auto over_row = [&](auto use) {
    in_flight<8>((uint32_t)threadIdx.x, v, (uint32_t)blockDim.x, [=](uint32_t i) { return x[i]; },
                 [&](uint32_t i, float logit) {
                   float z = logit / temperature;
                   if (rank_of(z, i) >= low) use(i, z);
                 });
  };
  if (threadIdx.x == 0) select->removed = 0;
  if (threadIdx.x < 256) select->bins[threadIdx.x] = 0;
  __syncthreads();
  over_row([&](uint32_t, float z) {
    uint64_t weight = select_weight<COUNT>(z, max_z);
    if (weight) atomicAdd(select->bins + distance_digit(z, max_z), (unsigned long long)weight);
  });
  __syncthreads();
  find_bin(select, budget);
  __syncthreads();
  uint32_t distance = select->digit;
  auto each = [&](auto use) {
    over_row([&](uint32_t i, float z) {
      if (distance_digit(z, max_z) == distance) use(i, z);
    });
  };
  return select_digits<COUNT>(each, max_z, low, budget, select);
}

// The maximum over a block of 512 threads.
XT_DEV float block_max(float m, RadixSelect* select) {
  m = max32(m);
  if (threadIdx.x % 32 == 0) select->maximum[threadIdx.x / 32] = m;
  __syncthreads();
  for (int i = 0; i < 16; i++) m = max_f32(m, select->maximum[i]);
  __syncthreads();
  return m;
}

// The lowest rank that top-p keeps among the ranks from `low` on.
XT_DEV uint64_t top_p_rank(const float* x, uint32_t v, float temperature, float max_z, uint64_t low, float top_p,
                           RadixSelect* select) {
  if (threadIdx.x == 0) select->sum = 0;
  __syncthreads();
  uint64_t sum = 0;
  auto add = [&](uint32_t i, float logit) {
    float z = XT_FAULT(TopPSumOfReciprocal) ? logit * (1.0f / temperature) : logit / temperature;
    if (rank_of(z, i) >= low) sum += select_weight<false>(z, max_z);
  };
  in_flight<8>((uint32_t)threadIdx.x, v, (uint32_t)blockDim.x, [=](uint32_t i) { return x[i]; }, add);
  sum = warp_total(sum);
  if (threadIdx.x % 32 == 0) atomicAdd(&select->sum, (unsigned long long)sum);
  __syncthreads();
  uint64_t total = select->sum, budget = (uint64_t)((1.0 - (double)top_p) * (double)total);
  return select_rank<false>(x, v, temperature, max_z, low, budget < total ? budget : total - 1, select);
}
