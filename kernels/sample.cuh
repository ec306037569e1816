// What the sampler's kernels share (docs/numerics.md, section 7): a row's options and state, its scaled
// logits, their ranks and integer weights. A row's logits come in chunks of 128, a warp a chunk.
#pragma once

// Written by gpu/sample.rs.
struct alignas(8) SampleRow {
  uint64_t seed, id;
  uint32_t position;  // in turn 0
  float temperature;  // 0: greedy
  uint32_t top_k;     // 0: all
  float top_p;        // 1: all
  float min_p;        // 0: all
  float penalty;      // 1: none
  uint32_t seen, seen_end;  // the ids that the penalty looks at, in the list of all rows
};

// Found by sample_cut.
struct alignas(8) SampleState {
  uint64_t cut;    // the lowest rank that is kept
  float largest;   // max z
  uint32_t fault;  // 0; 1: a NaN or +inf; 2: all -inf; 3: scaled out of range
};

struct ChunkSums { float m, l; };  // max, and sum of exp(z - max)

XT_DEV float scaled(float x, float temperature) { return temperature == 0.0f ? x : x / temperature; }

// Rises with z, one zero for both.
XT_DEV uint32_t rising_bits(float z) {
  uint32_t u = xt_f_bits(z + 0.0f);
  return u >> 31 ? ~u : u | 0x80000000u;
}

XT_DEV float of_rising_bits(uint32_t u) { return xt_bits_f(u >> 31 ? u & 0x7fffffffu : ~u); }

// Rises with z and, where z is equal, falls with the index.
XT_DEV uint64_t rank_of(float z, uint32_t i) { return (uint64_t)rising_bits(z) << 32 | (uint32_t)~i; }

// w > 0 ? max(1, trunc(w 2^44)) : 0, for w in [0, 1]; exp gives no denormal.
XT_DEV uint64_t integer_weight(float w) {
  if (!(w > 0.0f)) return 0;
  uint32_t u = xt_f_bits(w);
  int shift = (int)(u >> 23) - 150 + 44;
  uint64_t digits = (u & 0x7fffffu) | 0x800000u;
  uint64_t weight = shift >= 0 ? digits << shift : shift > -24 ? digits >> -shift : 0;
  return weight ? weight : 1;
}

// A token as the draw sees it: z is -inf and the weight 0 where it is removed. Greedy keeps what equals
// the largest.
struct Token { float z; uint64_t weight; };

XT_DEV Token token_of(float x, uint32_t i, const SampleRow& row, const SampleState& state) {
  const float none = xt_bits_f(0xff800000u);
  if (row.temperature == 0.0f) return x == state.largest ? Token{x, 1} : Token{none, 0};
  float z = x / row.temperature, w = exp_of(z - state.largest);
  if (z == none || rank_of(z, i) < state.cut || w < row.min_p) return {none, 0};
  return {z, integer_weight(w)};
}

// m and l of a chunk, four values a lane in rising order; -inf where there is none.
XT_DEV ChunkSums chunk_sums(const float (&z)[4]) {
  float m = max32_of(max_of(max_of(z[0], z[1]), max_of(z[2], z[3]))), l = 0.0f;
  if (m == xt_bits_f(0xff800000u)) return {m, 0.0f};
#pragma unroll
  for (int k = 0; k < 4; k++) l = l + exp_of(z[k] - m);
  return {m, sum32_of(l)};
}

// M + log(sum32 over chunks of l exp(m - M)), by a warp.
XT_DEV float lse_of(const ChunkSums* sums, uint32_t chunks) {
  float most = xt_bits_f(0xff800000u), v = 0.0f;
  for (uint32_t c = threadIdx.x % 32; c < chunks; c += 32) most = max_of(most, sums[c].m);
  most = max32_of(most);
  for (uint32_t c = threadIdx.x % 32; c < chunks; c += 32) v = fmaf(sums[c].l, exp_of(sums[c].m - most), v);
  return most + log_of(sum32_of(v));
}

XT_DEV uint64_t warp_total(uint64_t v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

// The sum over the lanes up to this one.
XT_DEV uint64_t warp_running(uint64_t v) {
  uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    uint64_t below = __shfl_up_sync(0xffffffffu, v, o);
    if (lane >= (uint32_t)o) v += below;
  }
  return v;
}
