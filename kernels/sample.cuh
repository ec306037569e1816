// Shared by the sampling kernels (docs/numerics.md, section 7): options and state of a row, its scaled logits, their
// ranks and integer weights. A row of logits is processed in chunks of 128, one warp per chunk.
#pragma once
#include "in_flight.cuh"

// Written by gpu/sample.rs.
struct alignas(8) SampleRow {
  uint64_t seed, id;
  uint32_t position;        // at step 0
  float temperature;        // 0: greedy
  uint32_t top_k;           // 0: off
  float top_p;              // 1: off
  float min_p;              // 0: off
  float penalty;            // 1: off
  uint32_t seen, seen_end;  // range of the penalized ids in the list of all rows
};

// Written by sample_cutoff.
struct alignas(8) SampleState {
  uint64_t cutoff;  // lowest rank that top-k and top-p keep
  float max_z;      // maximum of z
  uint32_t fault;   // 0: none; 1: a NaN or +inf; 2: all -inf; 3: overflow after scaling
};

struct ChunkSums {
  float m, l;
};  // max, and sum of exp(z - max)

XT_DEV float scaled(float x, float temperature) { return temperature == 0.0f ? x : x / temperature; }

// Monotone in z; among equal z, a lower index has a higher rank.
XT_DEV uint64_t rank_of(float z, uint32_t i) { return (uint64_t)ordered_bits(z) << 32 | (uint32_t)~i; }

// w > 0 ? max(1, trunc(w 2^44)) : 0, for w in [0, 1]; exp_f32 never returns a denormal.
XT_DEV uint64_t integer_weight(float w) {
  if (!(w > 0.0f)) return 0;
  uint32_t u = xt_f_bits(w);
  int shift = (int)(u >> 23) - 150 + 44;
  uint64_t digits = (u & 0x7fffffu) | 0x800000u;
  uint64_t weight = shift >= 0 ? digits << shift : shift > -24 ? digits >> -shift : 0;
  return weight ? weight : 1;
}

// A token after the filters: a removed one has z = -inf and weight 0. Greedy keeps the tokens equal to the maximum.
struct Token {
  float z;
  uint64_t weight;
};

XT_DEV Token token_of(float x, uint32_t i, const SampleRow& row, const SampleState& state) {
  const float neg_inf = xt_bits_f(0xff800000u);
  if (row.temperature == 0.0f) return x == state.max_z ? Token{x, 1} : Token{neg_inf, 0};
  float z = x / row.temperature, w = exp_f32(z - state.max_z);
  if (z == neg_inf || rank_of(z, i) < state.cutoff || w < row.min_p) return {neg_inf, 0};
  return {z, integer_weight(w)};
}

// m and l of a chunk, four values per lane in ascending order; absent values are -inf.
XT_DEV ChunkSums chunk_sums(const float (&z)[4]) {
  float m = max32(max_f32(max_f32(z[0], z[1]), max_f32(z[2], z[3]))), l = 0.0f;
  if (m == xt_bits_f(0xff800000u)) return {m, 0.0f};
#pragma unroll
  for (int k = 0; k < 4; k++) l = l + exp_f32(z[k] - m);
  return {m, sum32(l)};
}

// M + log(sum32 over chunks of l exp(m - M)) with M = max m. Called by one warp.
XT_DEV float lse_of(const ChunkSums* sums, uint32_t chunks) {
  float maximum = xt_bits_f(0xff800000u), v = 0.0f;
  auto load_at = [=](uint32_t c) { return sums[c]; };
  in_flight<8>(threadIdx.x % 32, chunks, 32u, load_at,
               [&](uint32_t, ChunkSums s) { maximum = max_f32(maximum, s.m); });
  maximum = max32(maximum);
  in_flight<8>(threadIdx.x % 32, chunks, 32u, load_at,
               [&](uint32_t, ChunkSums s) { v = fmaf(s.l, exp_f32(s.m - maximum), v); });
  return maximum + log_f32(sum32(v));
}

XT_DEV uint64_t warp_total(uint64_t v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

// Inclusive prefix sum over the lanes.
XT_DEV uint64_t warp_running(uint64_t v) {
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    uint64_t below = __shfl_up_sync(0xffffffffu, v, o);
    if (lane >= (uint32_t)o) v += below;
  }
  return v;
}
