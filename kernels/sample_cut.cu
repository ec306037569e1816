// sample_cut   the largest z of a row; whether the row can be drawn from; the lowest rank that top-k and
//              top-p keep                        x [N, V], raw [N, ceil(V / 128)] -> state [N]
// Both filters walk the ranks upwards and remove while the running sum of a weight (1 for top-k, W for
// top-p) stays within a budget: a radix select by eight digits, a histogram of integer sums each. The
// first digit is the distance from the largest, which spreads what the exponent's bits would not.
// Launch: a block of 512 a row. CPU twin: reference/sample.rs.

struct Walk {
  unsigned long long bins[256];
  unsigned long long spent, held, sum;
  uint32_t digit;
  float most[16];
};

XT_DEV uint32_t distance_digit(float z, float largest) {
  float d = (largest - z) * 2.9f;
  return d < 255.0f ? 255 - (uint32_t)d : 0;
}

// The rank in 56 bits: an index has 19.
XT_DEV uint64_t short_rank(float z, uint32_t i) { return (uint64_t)rising_bits(z) << 24 | (~i & 0xffffffu); }

template <bool COUNT>
XT_DEV uint64_t walk_weight(float z, float largest) { return COUNT ? 1 : integer_weight(exp_of(z - largest)); }

// The bin in which the running sum passes the budget, by the first warp.
XT_DEV void find_bin(Walk* walk, uint64_t budget) {
  if (threadIdx.x >= 32) return;
  uint32_t lane = threadIdx.x;
  uint64_t spent = walk->spent, mine = 0;
  for (int i = 0; i < 8; i++) mine += walk->bins[8 * lane + i];
  uint64_t running = warp_running(mine);
  uint32_t passed = __ballot_sync(0xffffffffu, spent + running > budget);
  if (!passed || lane != (uint32_t)(__ffs(passed) - 1)) return;
  spent += running - mine;
  uint32_t bin = 8 * lane;
  for (; spent + walk->bins[bin] <= budget; bin++) spent += walk->bins[bin];
  walk->digit = bin;
  walk->held = walk->bins[bin];
  walk->spent = spent;
}

// The first rank, from `low` upwards, with which the running sum passes the budget; the sum of all does.
template <bool COUNT>
XT_DEV uint64_t walk_to(const float* x, uint32_t v, float temperature, float largest, uint64_t low, uint64_t budget, Walk* walk) {
  uint64_t prefix = 0;
  uint32_t distance = 0;
  if (threadIdx.x == 0) walk->spent = 0;
  for (int pass = 0; pass < 8; pass++) {
    int shift = 56 - 8 * pass;
    if (threadIdx.x < 256) walk->bins[threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < v; i += blockDim.x) {
      float z = x[i] / temperature;
      uint64_t rank = short_rank(z, i);
      uint32_t first = distance_digit(z, largest);
      if (rank_of(z, i) < low || (pass && (first != distance || rank >> (shift + 8) != prefix))) continue;
      uint64_t weight = walk_weight<COUNT>(z, largest);
      if (weight) atomicAdd(walk->bins + (pass ? rank >> shift & 255 : first), (unsigned long long)weight);
    }
    __syncthreads();
    find_bin(walk, budget);
    __syncthreads();
    if (pass == 0) distance = walk->digit;
    else prefix = prefix << 8 | walk->digit;
    // a z that stands once needs no index; of those below `low` none comes back
    if (pass == 4 && walk->held == walk_weight<COUNT>(of_rising_bits((uint32_t)prefix), largest)) return max(low, prefix << 32);
  }
  return prefix >> 24 << 32 | 0xff000000u | (prefix & 0xffffffu);
}

XT_DEV float block_max(float m, Walk* walk) {
  m = max32_of(m);
  if (threadIdx.x % 32 == 0) walk->most[threadIdx.x / 32] = m;
  __syncthreads();
  for (int i = 0; i < 16; i++) m = max_of(m, walk->most[i]);
  __syncthreads();
  return m;
}

XT_KERNEL(sample_cut_f32, 512)(const float* x, const SampleRow* rows, const ChunkSums* raw, SampleState* states, uint32_t v,
                               uint32_t chunks) {
  XT_SHARED(Walk, walk, 1);
  const float none = xt_bits_f(0xff800000u);
  SampleRow row = rows[blockIdx.x];
  x += (size_t)blockIdx.x * v;
  raw += (size_t)blockIdx.x * chunks;
  float most = none;
  for (uint32_t c = threadIdx.x; c < chunks; c += blockDim.x) most = max_of(most, raw[c].m);
  most = block_max(most, walk);
  uint32_t fault = most == xt_bits_f(0x7f800000u) ? 1 : most == none ? 2 : 0;

  // a division keeps the order; a penalty does not
  float largest = scaled(most, row.temperature);
  if (row.penalty != 1.0f) {
    largest = none;
    for (uint32_t i = threadIdx.x; i < v; i += blockDim.x) largest = max_of(largest, scaled(x[i], row.temperature));
    largest = block_max(largest, walk);
  }
  if (!fault && (xt_f_bits(largest) & 0x7fffffffu) == 0x7f800000u) fault = 3;

  uint64_t cut = 0;
  if (!fault && row.temperature != 0.0f) {
    if (row.top_k && row.top_k < v) cut = walk_to<true>(x, v, row.temperature, largest, 0, v - row.top_k, walk);
    if (row.top_p < 1.0f) {
      if (threadIdx.x == 0) walk->sum = 0;
      __syncthreads();
      uint64_t sum = 0;
      for (uint32_t i = threadIdx.x; i < v; i += blockDim.x) {
        float z = x[i] / row.temperature;
        if (rank_of(z, i) >= cut) sum += walk_weight<false>(z, largest);
      }
      sum = warp_total(sum);
      if (threadIdx.x % 32 == 0) atomicAdd(&walk->sum, (unsigned long long)sum);
      __syncthreads();
      uint64_t total = walk->sum, budget = (uint64_t)((1.0 - (double)row.top_p) * (double)total);
      cut = walk_to<false>(x, v, row.temperature, largest, cut, budget < total ? budget : total - 1, walk);
    }
  }
  if (threadIdx.x == 0) states[blockIdx.x] = {cut, largest, fault};
}
XT_EXPORT(sample_cut_f32)
