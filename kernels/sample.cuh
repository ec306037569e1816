// Shared by the sampling kernels (docs/numerics.md, section 7): options and maxima of a row, its scaled logits, their
// ranks and integer weights. A row of logits is processed in chunks of 128, one warp per chunk.
#pragma once
#include "in_flight.cuh"

// Logits of a row per block, of kernels whose blocks of 256 threads share a row: 32 chunks.
#define SAMPLE_BLOCK 4096u

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

// Written by sample_histogram, except `cutoff`; read by sample_cutoff, which writes `cutoff`.
struct RowSelect {
  uint64_t cutoff;           // lowest rank that is kept
  uint64_t removed, budget;  // sum of the bins below `bin`; largest sum that is removed
  uint32_t bin, listed;
};

struct ChunkSums {
  float m, l;
};  // max, and sum of exp(z - max)

struct RowMaxima {
  float x, z;      // max x; max z, after penalty and temperature
  uint32_t fault;  // 0: none; 1: a NaN or +inf; 2: all -inf; 3: overflow after scaling
};

XT_DEV bool has_top_k(const SampleRow& row, uint32_t v) {
  return row.temperature != 0.0f && row.top_k && row.top_k < v;
}
XT_DEV bool has_top_p(const SampleRow& row) { return row.temperature != 0.0f && row.top_p < 1.0f; }

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

// cutoff: the lowest rank that top-k and top-p keep.
XT_DEV Token token_of(float x, uint32_t i, const SampleRow& row, float max_z, uint64_t cutoff) {
  const float neg_inf = xt_bits_f(0xff800000u);
  if (row.temperature == 0.0f) return x == max_z ? Token{x, 1} : Token{neg_inf, 0};
  float z = x / row.temperature, w = exp_f32(z - max_z);
  if (z == neg_inf || rank_of(z, i) < cutoff || w < row.min_p) return {neg_inf, 0};
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

// raw[c] = (max, sum of exp(x - max)) of this warp's chunk c of row blockIdx.x of x [N, V], raw [N, chunks]; max is +inf
// if a logit of the chunk is a NaN or +inf. A block of 256 threads computes eight chunks: grid (N, ceil(chunks / 8)).
XT_DEV void store_chunk_sums(const float* x, ChunkSums* raw, uint32_t v, uint32_t chunks) {
  uint32_t chunk = blockIdx.y * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (chunk >= chunks) return;
  x += (size_t)blockIdx.x * v;
  float z[4];
  bool bad = false;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    uint32_t i = 128 * chunk + 32 * k + lane;
    z[k] = i < v ? x[i] : xt_bits_f(0xff800000u);
    bad = bad || z[k] != z[k] || z[k] == xt_bits_f(0x7f800000u);
  }
  bool any = __any_sync(0xffffffffu, bad);
  ChunkSums sums = any ? ChunkSums{xt_bits_f(0x7f800000u), 0.0f} : chunk_sums(z);
  if (lane == 0) raw[(size_t)blockIdx.x * chunks + chunk] = sums;
}

// maximum + log(sum32 over chunks of l exp(m - maximum)); maximum = max m. Called by one warp.
XT_DEV float lse_of(const ChunkSums* sums, uint32_t chunks, float maximum) {
  float v = 0.0f;
  in_flight<8>(
      threadIdx.x % 32, chunks, 32u, [=](uint32_t c) { return sums[c]; },
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

// The maximum over a block of 256 threads.
XT_DEV float block_max(float m) {
  XT_SHARED(float, of_warps, 8);
  m = max32(m);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = m;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; i++) m = max_f32(m, of_warps[i]);
  __syncthreads();
  return m;
}

struct Running {
  uint64_t sum, total;
};

// Inclusive prefix sum over the threads of a block of 256, and the sum of all.
XT_DEV Running block_running(uint64_t v) {
  XT_SHARED(uint64_t, of_warps, 8);
  uint64_t sum = warp_running(v), total = 0;
  if (threadIdx.x % 32 == 31) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    if (i < threadIdx.x / 32 && !XT_FAULT(SumOfEarlierWarpsLost)) sum += of_warps[i];
    total += of_warps[i];
  }
  __syncthreads();
  return {sum, total};
}

// The maximum over the entries of a row, one per chunk or block. Executed by a block of 256 threads.
template <class Load> XT_DEV float max_of(uint32_t n, Load load_at) {
  float m = xt_bits_f(0xff800000u);
  in_flight<8>((uint32_t)threadIdx.x, n, 256u, load_at, [&](uint32_t, float entry) { m = max_f32(m, entry); });
  return block_max(m);
}

// The maxima of row blockIdx.x. Executed by a block of 256 threads.
XT_DEV RowMaxima row_maxima(const SampleRow& row, const ChunkSums* raw, const float* penalized, uint32_t v) {
  uint32_t chunks = (v + 127) / 128, blocks = (v + SAMPLE_BLOCK - 1) / SAMPLE_BLOCK;
  raw += (size_t)blockIdx.x * chunks;
  float x = max_of(chunks, [=](uint32_t c) { return raw[c].m; }), y = x;
  uint32_t fault = x == xt_bits_f(0x7f800000u) ? 1 : x == xt_bits_f(0xff800000u) ? 2 : 0;
  if (row.penalty != 1.0f) {
    penalized += (size_t)blockIdx.x * blocks;
    y = max_of(blocks, [=](uint32_t b) { return penalized[b]; });
  }
  float z = scaled(y, row.temperature);  // dividing by the temperature preserves the order
  if (!fault && (xt_f_bits(z) & 0x7fffffffu) == 0x7f800000u) fault = 3;
  return {x, z, fault};
}
