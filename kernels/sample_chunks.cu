// sample_chunks    raw[n][c] = (max, sum of exp(x - max)) of each chunk of 128 logits; max is +inf if a logit of the
//                  chunk is a NaN or +inf                               x [N, V] -> raw [N, ceil(V / 128)]
//                  step = step + 1, read by the kernels after it
// Launch: one warp per chunk, eight chunks of one row per block. CPU twin: reference/sample.rs.
#include "philox.cuh"
#include "sample.cuh"

XT_KERNEL(sample_chunks_f32, 256)(const float* x, ChunkSums* raw, uint32_t* step, uint32_t v, uint32_t chunks) {
  xt_grid_dependency_sync();
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *step += 1;
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
XT_EXPORT(sample_chunks_f32)

// load_step_indices   current[i] = all[(step + 1) words + i], i < words: the index lists of the next step. Launched
//                     at the beginning of a step, before sample_chunks increments the counter
//                     all [steps, words] -> current [words]
// Launch: one thread per word.
XT_KERNEL(load_step_indices, 128)(const uint32_t* step, const uint32_t* all, uint32_t* current, uint32_t words) {
  xt_grid_dependency_sync();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < words) current[i] = all[(size_t)(*step + 1) * words + i];
}
XT_EXPORT(load_step_indices)

// sample_penalty   y[n] = x[n], except y[n][id] = x > 0 ? x / penalty : x penalty with x = x[n][id], for each id in
//       row n's list (no duplicates) and each id that it sampled in earlier steps   x, y [N, V], samples [step, N, 4]
// Launch: 256 threads per block, 4096 logits of one row per block.
XT_KERNEL(sample_penalty_f32, 256)(const float* x, float* y, const SampleRow* rows, const uint32_t* seen,
                                   const uint32_t* step, const uint32_t* samples, uint32_t v) {
  xt_grid_dependency_sync();
  SampleRow row = rows[blockIdx.x];
  x += (size_t)blockIdx.x * v;
  y += (size_t)blockIdx.x * v;
  uint32_t first = 4096 * blockIdx.y, end = min(v, first + 4096);
  in_flight<8>(
      first + threadIdx.x, end, (uint32_t)blockDim.x, [=](uint32_t i) { return x[i]; },
      [=](uint32_t i, float z) { y[i] = z; });
  __syncthreads();
  for (uint32_t i = row.seen + threadIdx.x; i < row.seen_end; i += blockDim.x) {
    uint32_t id = seen[i];
    if (id < first || id >= end) continue;
    y[id] = x[id] > 0.0f ? x[id] / row.penalty : x[id] * row.penalty;
  }
  if (row.penalty == 1.0f) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (uint32_t before = 0; before < *step; before++) {
    uint32_t id = samples[4 * ((size_t)before * gridDim.x + blockIdx.x) + 1];
    if (id >= first && id < end) y[id] = x[id] > 0.0f ? x[id] / row.penalty : x[id] * row.penalty;
  }
}
XT_EXPORT(sample_penalty_f32)

// sample_weights  kept[n][c] = (max, sum of exp(z - max)), total[n][c] = sum of W, over the kept tokens of each chunk
//                  x [N, V] -> kept, total [N, ceil(V / 128)]
// Launch: as sample_chunks. Integer sums are independent of order.
XT_KERNEL(sample_weights_f32, 256)(const float* x, const SampleRow* rows, const SampleState* states, ChunkSums* kept,
                                   uint64_t* total, uint32_t v, uint32_t chunks) {
  xt_grid_dependency_sync();
  uint32_t chunk = blockIdx.y * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  SampleState state = states[blockIdx.x];
  if (chunk >= chunks || state.fault) return;
  SampleRow row = rows[blockIdx.x];
  x += (size_t)blockIdx.x * v;
  float z[4];
  uint64_t weight = 0;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    uint32_t i = 128 * chunk + 32 * k + lane;
    Token token = i < v ? token_of(x[i], i, row, state) : Token{xt_bits_f(0xff800000u), 0};
    z[k] = token.z;
    weight += token.weight;
  }
  ChunkSums sums = chunk_sums(z);
  weight = warp_total(weight);
  if (lane != 0) return;
  kept[(size_t)blockIdx.x * chunks + chunk] = sums;
  total[(size_t)blockIdx.x * chunks + chunk] = weight;
}
XT_EXPORT(sample_weights_f32)

// sample_pick      r = high 64 bits of u S (0 when greedy);  token = the lowest i with W_0 + ... + W_i > r
//                  log-prob = x_token - lse(x);  processed = z_token - lse(kept z) (0 when greedy)
//                  samples [step, N, 4]: fault, token, bits of both log-probabilities; also tokens[n]
// Launch: one warp per row.
XT_KERNEL(sample_pick_f32, 32)(const float* x, const float* y, const SampleRow* rows, const uint32_t* step,
                               const SampleState* states, const ChunkSums* raw, const ChunkSums* kept,
                               const uint64_t* total, uint32_t* samples, uint32_t* tokens, uint32_t v,
                               uint32_t chunks) {
  xt_grid_dependency_sync();
  uint32_t lane = threadIdx.x;
  SampleState state = states[blockIdx.x];
  SampleRow row = rows[blockIdx.x];
  samples += 4 * ((size_t)*step * gridDim.x + blockIdx.x);
  if (state.fault) {
    if (lane == 0) tokens[blockIdx.x] = 0;
    if (lane < 4) samples[lane] = lane == 0 ? state.fault : 0;
    return;
  }
  x += (size_t)blockIdx.x * v;
  y += (size_t)blockIdx.x * v;
  raw += (size_t)blockIdx.x * chunks;
  kept += (size_t)blockIdx.x * chunks;
  total += (size_t)blockIdx.x * chunks;

  uint64_t sum = 0, r = 0;
  if (row.temperature != 0.0f) {
    in_flight<8>(lane, chunks, 32u, [=](uint32_t c) { return total[c]; }, [&](uint32_t, uint64_t w) { sum += w; });
    r = high_product(philox_of(row.seed, row.id, row.position + *step, 0), warp_total(sum));
  }
  // find the chunk in which the prefix sum exceeds r, and the sum before that chunk
  uint64_t before = 0;
  uint32_t chunk = 0;
  for (uint32_t first = 0; first < chunks; first += 32) {
    uint64_t here = first + lane < chunks ? total[first + lane] : 0, running = warp_running(here);
    uint32_t passed = __ballot_sync(0xffffffffu, before + running > r);
    int winner = passed ? __ffs(passed) - 1 : 31;
    chunk = first + winner;
    before += __shfl_sync(0xffffffffu, passed ? running - here : running, winner);
    if (passed) break;
  }
  uint32_t token = 0;
  for (uint32_t first = 128 * chunk; first < 128 * chunk + 128; first += 32) {
    uint32_t i = first + lane;
    uint64_t running = warp_running(i < v ? token_of(y[i], i, row, state).weight : 0);
    uint32_t passed = __ballot_sync(0xffffffffu, before + running > r);
    token = first + (passed ? __ffs(passed) - 1 : 0);
    if (passed) break;
    before += __shfl_sync(0xffffffffu, running, 31);
  }
  float whole = lse_of(raw, chunks), part = lse_of(kept, chunks);
  if (lane != 0) return;
  samples[0] = 0;
  samples[1] = tokens[blockIdx.x] = token;
  samples[2] = xt_f_bits(x[token] - whole);
  samples[3] = xt_f_bits(row.temperature == 0.0f ? 0.0f : y[token] / row.temperature - part);
}
XT_EXPORT(sample_pick_f32)
